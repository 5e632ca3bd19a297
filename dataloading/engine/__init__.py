"""A batch in the making: plan, job, workers, epoch, transfer, resume."""
