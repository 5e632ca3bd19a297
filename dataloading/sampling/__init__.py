"""Which samples, in what order, on which rank: pure functions and a thin stateful shell."""
