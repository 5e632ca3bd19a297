"""What users of FFCV publicly reported, on our engine: leaks, repeated labels, silent wrong data."""

from __future__ import annotations

import collections
import gc
import json
import os
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from dataloading import DecodeError
from dataloading.errors import TransformError, UsageError
from dataloading.ffcv.fields import BytesField, FloatField, IntField, NDArrayField, RGBImageField
from dataloading.ffcv.fields.decoders import (
    FloatDecoder,
    IntDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from dataloading.ffcv.loader import Loader, OrderOption
from dataloading.ffcv.pipeline import PipelineSpec
from dataloading.ffcv.pipeline.operation import Operation
from dataloading.ffcv.reader import Reader
from dataloading.ffcv.transforms import Convert, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from dataloading.ffcv.traversal_order import QuasiRandom, Random, Sequential
from dataloading.ffcv.writer import DatasetWriter
from tests.support.processes import init, join, start
from tests.support.waiting import wait_for

LABELS = [IntDecoder, ToTensor, Squeeze]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("reported") / "f.beton"
    array = {name: NDArrayField(np.dtype(np.float32), (3,)) for name in "abcd"}
    fields = {"image": RGBImageField("jpg"), "label": IntField(), "x": FloatField(), **array}
    pixels = np.random.default_rng(0).integers(0, 256, (41, 8, 8, 3), np.uint8)
    arrays = np.arange(41 * 4 * 3, dtype=np.float32).reshape(41, 4, 3)
    samples = [(pixels[i], i, i / 4, *arrays[i]) for i in range(41)]
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(samples)
    return path


NOTHING = dict.fromkeys(["image", "label", "x", "a", "b", "c", "d"])


def loader(path, pipelines, **options):
    return Loader(path, **{"batch_size": 5, "num_workers": 2, "pipelines": NOTHING | pipelines} | options)


def labels():
    return [each() for each in LABELS]


def memory_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_abandoned_iterators_leave_no_thread_and_no_memory(path):
    crop = [RandomResizedCropRGBImageDecoder((64, 64)), ToTensor(), ToTorchImage()]
    made = loader(path, {"image": crop, "label": labels()})
    before = threading.active_count()
    for number in range(1000):
        images, numbers = next(iter(made))
        assert images.shape == (5, 3, 64, 64) and numbers.tolist() == [0, 1, 2, 3, 4]
        if number == 100:
            used = memory_bytes()
    # An iterator's batches in flight alone have 0.3 MB.
    assert memory_bytes() - used < 100e6
    del made, images
    gc.collect()
    wait_for(lambda: threading.active_count() <= before)


def test_four_fields_share_one_list(path):
    shared = [NDArrayDecoder(), ToTensor(), Convert(torch.float64)]
    made = loader(path, dict.fromkeys("abcd", shared), drop_last=False)
    for _ in range(2):
        rows = [torch.stack(batch, 1) for batch in made]
        assert torch.cat(rows).flatten().tolist() == list(range(41 * 12))
    assert len(shared) == 3


def test_the_last_batch_of_one_goes_through_any_pipeline(path):
    image = [RandomResizedCropRGBImageDecoder((6, 6)), RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    pipelines = {"image": image, "label": labels(), "x": [FloatDecoder(), ToTensor(), Squeeze(1)]}
    last = list(loader(path, pipelines, batch_size=8, drop_last=False))[-1]
    assert [tuple(each.shape) for each in last] == [(1, 3, 6, 6), (1,), (1,)]
    assert last[1].item() == 40 and last[2].item() == 10.0


def test_an_epoch_depends_on_seed_and_number_whatever_ran_before(path):
    def epochs(order, num_workers, skipped):
        image = [RandomResizedCropRGBImageDecoder((6, 6)), RandomHorizontalFlip(), ToTensor()]
        made = loader(path, {"image": image}, order=order, seed=4, num_workers=num_workers)
        if skipped:
            made.next_epoch = 3
            return torch.cat([images for (images,) in made])
        return [torch.cat([images for (images,) in made]) for _ in range(4)][3]

    for order in (OrderOption.RANDOM, OrderOption.QUASI_RANDOM):
        assert torch.equal(epochs(order, 1, skipped=True), epochs(order, 2, skipped=False))


def test_loaders_leave_the_thread_counts_of_torch_and_numba_alone(path):
    before = torch.get_num_threads(), numba.get_num_threads()
    one, two = loader(path, {"label": labels()}, num_workers=1), loader(path, {"label": labels()}, num_workers=2)
    assert [a.tolist() for (a,) in one] == [b.tolist() for (b,) in two]
    assert (torch.get_num_threads(), numba.get_num_threads()) == before


def test_an_empty_loader_warns(path):
    with pytest.warns(UserWarning, match="gives no batch: 41 samples"):
        assert len(loader(path, {"label": labels()}, batch_size=42)) == 0


def test_an_operation_that_raises_and_a_damaged_image_are_named(path, tmp_path):
    class Fails(Operation):
        def generate_code(self):
            def fail(values, _, indices):
                raise RuntimeError(f"no sample {indices[2]}")

            fail.with_indices = True
            return fail

        def declare_state_and_memory(self, previous_state):
            previous_state.jit_mode = False
            return previous_state, None

    with pytest.raises(TransformError, match=r"pipelines\['label'\]\[1\] \(Fails\).*no sample 2"):
        next(iter(loader(path, {"label": [IntDecoder(), Fails()]})))
    whole = bytearray(path.read_bytes())
    start_at = int(Reader(path).column("image")[3]["data_ptr"])
    whole[start_at : start_at + 20] = bytes(20)
    (tmp_path / "damaged.beton").write_bytes(whole)
    with pytest.raises(DecodeError, match="sample 3"):
        next(iter(loader(tmp_path / "damaged.beton", {"image": [SimpleRGBImageDecoder(), ToTensor()]})))


def test_images_of_several_sizes_are_refused_without_a_crop(tmp_path):
    samples = [(np.zeros((4 + i, 5, 3), np.uint8),) for i in range(3)]
    DatasetWriter(tmp_path / "f.beton", {"image": RGBImageField()}, num_workers=1).from_indexed_dataset(samples)
    with pytest.raises(TypeError, match=r"heights of 4 to 6.*RandomResizedCropRGBImageDecoder"):
        Loader(tmp_path / "f.beton", 2, pipelines={"image": [ToTensor()]})


@pytest.mark.parametrize(("value", "dtype"), [(np.zeros(3), "float32"), (np.zeros(3, np.int64), "float64")])
def test_arrays_of_another_dtype_are_refused(tmp_path, value, dtype):
    writer = DatasetWriter(tmp_path / "f.beton", {"a": NDArrayField(np.dtype(dtype), (3,))}, num_workers=1)
    with pytest.raises(UsageError, match=rf"sample 0 .*field 'a': expected a {dtype} array"):
        writer.from_indexed_dataset([(value,)])


def test_a_pipeline_that_begins_behind_an_operation_of_another_one(path):
    doubled, tensor, decoder = Convert(np.float32), ToTensor(), NDArrayDecoder()
    pipelines = {
        "late": PipelineSpec(tensor, transforms=[torch.nn.Softmax(dim=1)]),
        "a": [decoder, doubled, tensor, Convert(torch.int64)],
        "raw": PipelineSpec(decoder, transforms=[]),
        "later": PipelineSpec(doubled, transforms=[ToTensor()]),
        "again": PipelineSpec("a", NDArrayDecoder(), [ToTensor()]),
    }
    a, late, raw, later, again = next(iter(loader(path, pipelines)))
    assert a.dtype is torch.int64 and a.tolist() == again.tolist() == later.tolist() == raw.tolist()
    assert isinstance(raw, np.ndarray) and torch.allclose(late.sum(1), torch.ones(5))
    flip = RandomHorizontalFlip(1.0)
    images = {"image": [SimpleRGBImageDecoder(), flip, ToTensor()], "both": PipelineSpec(flip, transforms=[ToTensor()])}
    one, two = next(iter(loader(path, images)))
    assert torch.equal(one, two)
    for source, text in ((ToTensor(), "what is in no other pipeline"), (tensor, "an operation that 2 pipelines have")):
        with pytest.raises(UsageError, match=text):
            loader(path, {"a": [tensor], "b": [tensor], "c": PipelineSpec(source)})


def test_the_order_of_another_subset_can_be_assigned(path):
    made = loader(path, {"label": labels()}, drop_last=False, order=QuasiRandom, seed=1)
    assert sorted(torch.cat([each for (each,) in made]).tolist()) == list(range(41))
    made.indices = np.array([3, 8, 30])
    made.traversal_order = QuasiRandom(made)
    assert sorted(made.next_traversal_order().tolist()) == [3, 8, 30]
    assert len(made) == 1 and sorted(next(iter(made))[0].tolist()) == [3, 8, 30]


ORDERS = [*OrderOption, Sequential, Random, QuasiRandom]


def rank_main(rank: int, world: int, folder: Path, path: str) -> None:
    """Write this rank's labels of two epochs in each order."""
    init(rank, world, folder)
    found = {}
    for order in ORDERS:
        made = loader(path, {"label": labels()}, order=order, distributed=True, drop_last=False, num_workers=1)
        found[str(order)] = [torch.cat([each for (each,) in made]).tolist() for _ in range(2)]
    made = loader(path, {"label": labels()}, distributed=True, drop_last=False, num_workers=1)
    kept = made.filter("label", lambda label: label % 2 == 0)
    found["filter"] = [torch.cat([each for (each,) in kept]).tolist()]
    (folder / f"{rank}.json").write_text(json.dumps(found))


def test_two_ranks_get_each_sample_once_in_every_order(path, tmp_path):
    join(start(rank_main, 2, tmp_path, str(path)))
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for order in map(str, ORDERS):
        for first, second in zip(one[order], two[order], strict=True):
            counts = collections.Counter(first + second)
            # 41 samples: one of them twice, so that both ranks have 21.
            assert len(first) == len(second) == 21 and sorted(counts) == list(range(41))
        assert ("SEQUENTIAL" in order or "Sequential" in order) == (one[order][0] == one[order][1])
    assert sorted(set(one["filter"][0] + two["filter"][0])) == list(range(0, 41, 2))
    with pytest.raises(UsageError, match="init_process_group"):
        loader(path, {"label": labels()}, distributed=True)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_webdataset_is_written_shard_by_shard(tmp_path, keeps):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(f"{tmp_path}/shard-%06d.tar", maxcount=3, verbose=0) as shards:
        for i in range(7):
            shards.write({"__key__": f"{i:03d}", "cls": i, "txt": "abc"[: i % 3]})

    def pipeline(dataset):
        made = dataset.decode().map(lambda sample: (sample["cls"], np.frombuffer(sample["txt"].encode(), np.uint8)))
        return made if keeps else None

    writer = DatasetWriter(tmp_path / "f.beton", {"label": IntField(), "text": BytesField()}, num_workers=2)
    files = sorted(str(each) for each in tmp_path.glob("*.tar"))
    assert len(files) == 3
    if not keeps:
        with pytest.raises(UsageError, match="the pipeline returned None"):
            writer.from_webdataset(files, pipeline)
        return
    writer.from_webdataset(files, pipeline)
    numbers, texts = next(iter(Loader(tmp_path / "f.beton", 7, num_workers=1)))
    assert numbers.flatten().tolist() == list(range(7))
    assert [bytes(row.tolist()).rstrip(b"\0").decode() for row in texts] == ["abc"[: i % 3] for i in range(7)]
