"""Images made from nothing, for trying things where no dataset may be had."""
