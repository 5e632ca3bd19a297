"""The measured values that `judge` works on. Plain data; measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DiskRates", "FileFacts", "Machine", "Measurements", "Setup", "Work"]


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """The files of the dataset.

    Parameters
    ----------
    path : str
    num_samples, num_bytes : int
    image_bytes : float
        Mean stored size of an image.
    raw_share : float
        Share of the images that are stored as pixels, 0..1.
    shorter_side : float
        Median shorter side of the stored images (pixels).
    """

    path: str
    num_samples: int
    num_bytes: int
    image_bytes: float
    raw_share: float = 0.0
    shorter_side: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DiskRates:
    """How fast the files can be read, without the page cache, and how many of the images are in it.

    Parameters
    ----------
    cached_share : float or None
        Share of the stored images in the page cache, 0..1; None where the system does not say.
    sequential_bytes_per_second, random_reads_per_second : float or None
        None where nothing could be read past the cache. A random read has the mean size of an image; as many run at
        once as there are workers.
    method : str
        How the cache was avoided.
    """

    cached_share: float | None = None
    sequential_bytes_per_second: float | None = None
    random_reads_per_second: float | None = None
    method: str = ""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one image costs one worker, with its bytes in memory.

    Parameters
    ----------
    decode_seconds, transform_seconds : float
        Time in the two hops, per image.
    output_bytes : float
        Size of one image in a batch.
    by_transform : dict of str to float
        Seconds per image of each transform, where they could be told apart.
    serial_seconds : float
        Part of `transform_seconds` that only one worker at a time can do (Python code under `PerSample`).
    callable_seconds : float
        Per image, of torch modules and callables on finished batches, in the caller's thread.
    """

    decode_seconds: float
    transform_seconds: float
    output_bytes: float
    by_transform: dict[str, float] = field(default_factory=dict)
    serial_seconds: float = 0.0
    callable_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this process may use.

    Parameters
    ----------
    cores : int
        Cores it may run on (affinity).
    quota : float or None
        Limit of CPU time in cores, by the control group; None: no limit.
    memory_bytes : int
        Memory that the page cache can grow into.
    busy_cores : float
        Cores that other processes used meanwhile.
    """

    cores: int
    quota: float | None = None
    memory_bytes: int = 0
    busy_cores: float = 0.0

    @property
    def usable_cores(self) -> float:
        """Cores' worth of CPU time that it gets."""
        return min(self.cores, self.quota or self.cores)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How training is set up.

    Parameters
    ----------
    num_workers : int
        Workers of each process.
    num_processes : int
        Training processes on this machine, which share cores and disk.
    batch_size : int
    image_size : int
        Side of the crop (pixels).
    shuffle : str
        "global", "pages" or "none".
    on_device : bool
        Whether `place="device"` is set.
    """

    num_workers: int
    num_processes: int = 1
    batch_size: int = 256
    image_size: int = 224
    shuffle: str = "global"
    on_device: bool = False


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All that `judge` needs, of one process.

    Parameters
    ----------
    loader_rate : float or None
        Images per second that the Loader delivered with these workers, from memory.
    transfer_bytes_per_second : float or None
        Of copies from pinned memory to the device; None without a device.
    device_rate : float or None
        Images per second that the device of one process takes; None where it is not known.
    device_source : str
        Where `device_rate` comes from.
    copy_rates : dict of str to float
        Bytes per second of copies to, from and on the device.
    """

    file: FileFacts
    disk: DiskRates
    work: Work
    machine: Machine
    setup: Setup
    loader_rate: float | None = None
    transfer_bytes_per_second: float | None = None
    device_rate: float | None = None
    device_source: str = ""
    copy_rates: dict[str, float] = field(default_factory=dict)
