"""The outputs of a loader: which there are, of which fields, and which begins behind an operation of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataloading.errors import UsageError
from dataloading.ffcv.loader.chain import Chain
from dataloading.ffcv.memory_managers import MemoryManager
from dataloading.ffcv.pipeline.operation import Operation
from dataloading.ffcv.pipeline.pipeline_spec import PipelineSpec

__all__ = ["make_chains"]


def make_chains(
    memory: MemoryManager, pipelines: Mapping[str, Any], mapper: Mapping[str, str]
) -> tuple[dict[str, Chain], list[Chain]]:
    """Make the outputs.

    Parameters
    ----------
    memory : MemoryManager
    pipelines : mapping
        As the Loader's.
    mapper : mapping of str to str
        Further names of fields.

    Returns
    -------
    dict of str to Chain
        In FFCV's order: the file's fields, then the other names.
    list of Chain
        Each behind the one at whose operation it begins.
    """
    handlers = memory.reader.handlers
    for name, source in mapper.items():
        if source not in handlers:
            raise UsageError(_unknown(f"custom_field_mapper['{name}']", source, memory))
    names = [name for name in [*handlers, *mapper] if pipelines.get(name, ()) is not None]
    names += [name for name in pipelines if name not in {*handlers, *mapper} and pipelines[name] is not None]
    specs = {name: _spec(name, pipelines.get(name, ()), mapper.get(name, name), name in pipelines) for name in names}
    branches = {id(spec.source) for spec in specs.values() if not isinstance(spec.source, str)}
    made: dict[str, Chain] = {}
    begun: set[str] = set()

    def make(name: str) -> Chain:
        spec = specs[name]
        if name not in made and isinstance(spec.source, str):
            if spec.source not in handlers:
                raise UsageError(_unknown(f"pipelines['{name}']", spec.source, memory))
            made[name] = Chain(name, spec.source, memory, spec, branches=branches)
        elif name not in made:
            if name in begun:
                raise UsageError(f"pipelines['{name}'] begins behind an operation of its own")
            begun.add(name)
            parent = make(_owner(name, specs))
            made[name] = Chain(name, parent.source, memory, spec, parent=parent, branches=branches)
        return made[name]

    return {name: make(name) for name in names}, list(made.values())


def _spec(name: str, given: Any, source: str, is_given: bool) -> PipelineSpec:
    if isinstance(given, PipelineSpec):
        return given
    if not isinstance(given, Sequence):
        raise UsageError(f"pipelines['{name}'] must be a list of operations, got {type(given).__name__}")
    spec = PipelineSpec(source, transforms=given)
    spec.default_pipeline = not is_given
    return spec


def _owner(name: str, specs: Mapping[str, PipelineSpec]) -> str:
    """Return the name of the pipeline that has the operation behind which another one begins."""
    spec = specs[name]
    if spec.decoder is not None:
        raise UsageError(f"pipelines['{name}'] begins behind an operation of another pipeline: leave out its decoder")
    owners = [
        other for other, each in specs.items() if any(spec.source is op for op in (each.decoder, *each.transforms))
    ]
    if len(owners) != 1 or not isinstance(spec.source, Operation):
        found = f"an operation that {len(owners)} pipelines have" if owners else "what is in no other pipeline"
        raise UsageError(
            f"pipelines['{name}'] begins behind {found} ({type(spec.source).__name__}): give it the name of a field as "
            f"its source, or an Operation that stands in one other pipeline"
        )
    return owners[0]


def _unknown(where: str, source: str, memory: MemoryManager) -> str:
    reader = memory.reader
    return f"{where}: there is no field '{source}' in {reader.file_name}: it has {', '.join(reader.field_names)}"
