"""Scripts that were written for FFCV, on our engine: what they write, what their loaders give."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import Normalize

import dataloading
from dataloading import ffcv
from dataloading.errors import TransformError, UsageError
from dataloading.ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from dataloading.ffcv.fields.decoders import (
    CenterCropRGBImageDecoder,
    IntDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from dataloading.ffcv.loader import Loader, OrderOption
from dataloading.ffcv.pipeline import PipelineSpec
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.operation import Operation
from dataloading.ffcv.transforms import (
    Convert,
    Cutout,
    ImageMixup,
    LabelMixup,
    MixupToOneHot,
    NormalizeImage,
    Poison,
    RandomBrightness,
    RandomHorizontalFlip,
    RandomTranslate,
    ReplaceLabel,
    Squeeze,
    ToDevice,
    ToTensor,
    ToTorchImage,
    View,
)
from dataloading.ffcv.traversal_order import Random, TraversalOrder
from dataloading.ffcv.writer import DatasetWriter

ROOT = Path(__file__).resolve().parent.parent.parent
MEAN, STD = np.array([124.0, 116.0, 104.0]), np.array([58.0, 57.0, 57.0])


class Samples:
    """Sample i is a random image, the label i and the number i / 2."""

    def __init__(self, num: int, side: int = 16):
        self.pixels = np.random.default_rng(0).integers(0, 256, (num, side, side, 3), np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], int(index), index / 2


@pytest.fixture(scope="module")
def samples():
    return Samples(25)


@pytest.fixture(scope="module")
def path(samples, tmp_path_factory):
    path = tmp_path_factory.mktemp("ffcv") / "raw.beton"
    fields = {"image": RGBImageField(), "label": IntField(), "x": FloatField()}
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(samples)
    return path


def loader(path, image=(), label=None, **options):
    pipelines = {"image": list(image) if image is not None else None, "x": None}
    if label is not None:
        pipelines["label"] = label
    return Loader(path, **{"batch_size": 10, "num_workers": 2, "drop_last": False, "pipelines": pipelines} | options)


def test_a_batch_has_ffcvs_shapes_dtypes_and_order_of_fields(path, samples):
    images, labels, numbers = next(iter(Loader(path, 10, num_workers=2)))
    assert images.shape == (10, 16, 16, 3) and np.array_equal(images.numpy(), samples.pixels[:10])
    assert labels.dtype is torch.int64 and labels.tolist() == [[i] for i in range(10)]
    assert numbers.dtype is torch.float64 and numbers[:, 0].tolist() == [i / 2 for i in range(10)]
    arrays, labels = next(iter(loader(path, [SimpleRGBImageDecoder()], [IntDecoder()])))
    assert isinstance(arrays, np.ndarray) and arrays.shape == (10, 16, 16, 3)
    assert isinstance(labels, np.ndarray) and labels.shape == (10, 1)


def test_images_are_permuted_normalized_and_converted(path, samples):
    exact = (samples.pixels[:10] - MEAN) / STD
    before = [SimpleRGBImageDecoder(), NormalizeImage(MEAN, STD, np.float32), ToTensor(), ToTorchImage()]
    behind = [
        SimpleRGBImageDecoder(),
        ToTensor(),
        ToDevice("cpu"),
        ToTorchImage(),
        NormalizeImage(MEAN, STD, np.float16),
    ]
    for pipeline, dtype, close in ((before, torch.float32, 1e-6), (behind, torch.float16, 2e-3)):
        images, _ = next(iter(loader(path, pipeline)))
        assert images.dtype is dtype and images.is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_allclose(images.permute(0, 2, 3, 1).double(), exact, atol=close)
    planes = [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage(channels_last=False), Convert(torch.float32)]
    images, _ = next(iter(loader(path, planes)))
    assert images.is_contiguous() and np.array_equal(images.numpy(), samples.pixels[:10].transpose(0, 3, 1, 2))


def test_torchvisions_normalize_behind_convert_gives_the_exact_values_rounded_once(path, samples):
    normalize = Normalize(MEAN.tolist(), STD.tolist())
    image = [SimpleRGBImageDecoder(), ToTensor(), ToDevice("cpu"), ToTorchImage(), Convert(torch.float16), normalize]
    images, _ = next(iter(loader(path, image)))
    exact = ((samples.pixels[:10] - MEAN) / STD).astype(np.float16)
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), exact)


def test_the_drop_last_default_and_the_last_batch_of_one(path):
    assert len(Loader(path, 8)) == 3 and sum(1 for _ in Loader(path, 8)) == 3
    kept = loader(path, None, [IntDecoder(), ToTensor(), Squeeze(), View(torch.int64)], batch_size=24)
    assert [labels.shape for (labels,) in kept] == [(24,), (1,)]
    assert next(iter(loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], indices=[7])))[0].tolist() == [7]


def test_labels_collected_over_an_epoch_are_each_there_once(path):
    (every,) = zip(*loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], batch_size=5), strict=True)
    assert torch.cat(every).tolist() == list(range(25))


@pytest.mark.parametrize("order", [*OrderOption, Random])
def test_an_order_is_a_function_of_seed_and_epoch(path, order):
    def epochs(**options):
        made = loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], order=order, **options)
        told = []
        for _ in range(3):
            wanted = made.next_traversal_order().tolist()
            told.append(torch.cat([labels for (labels,) in made]).tolist())
            assert told[-1] == wanted
        return told

    first = epochs(seed=3, num_workers=1)
    assert first == epochs(seed=3, batch_size=7)
    assert all(sorted(each) == list(range(25)) for each in first)
    if order not in (OrderOption.SEQUENTIAL, OrderOption.SEQUENTIAL_CONTIGUOUS):
        assert first[0] != first[1] and first != epochs(seed=4)


def test_an_abandoned_iteration_counts_as_an_epoch(path):
    made = loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], order=OrderOption.RANDOM, seed=0)
    whole = loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], order=OrderOption.RANDOM, seed=0)
    wanted = [torch.cat([labels for (labels,) in whole]).tolist() for _ in range(3)]
    next(iter(made))
    iter(made)
    assert torch.cat([labels for (labels,) in made]).tolist() == wanted[2]


def test_ffcvs_own_random_order_is_there_as_a_class(path):
    made = loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], order=Random, seed=5)
    for epoch in range(2):
        wanted = np.random.default_rng(5 + epoch).permutation(25).tolist()
        assert torch.cat([labels for (labels,) in made]).tolist() == wanted


def test_a_traversal_order_of_the_users_own(path):
    class Backwards(TraversalOrder):
        def sample_order(self, epoch):
            return self.indices[::-1][epoch:]

    made = loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], order=Backwards)
    assert [torch.cat([labels for (labels,) in made]).tolist() for _ in range(2)] == [
        list(range(24, -1, -1)), list(range(23, -1, -1))
    ]  # fmt: skip


AUGMENTED = [
    lambda: [RandomResizedCropRGBImageDecoder((12, 12)), RandomHorizontalFlip(), ToTensor()],
    lambda: [SimpleRGBImageDecoder(), RandomTranslate(2), Cutout(4, (1, 2, 3)), RandomBrightness(0.4), ToTensor()],
]


@pytest.mark.parametrize("pipeline", AUGMENTED)
def test_the_same_seed_gives_the_same_bytes_whatever_the_batch_and_the_workers(path, pipeline):
    def epoch(**options):
        made = loader(path, pipeline(), **options)
        next(iter(made))
        return torch.cat([images for images, _ in made])

    assert torch.equal(epoch(seed=1, num_workers=1), epoch(seed=1, batch_size=4))
    assert not torch.equal(epoch(seed=1), epoch(seed=2))


def test_the_output_size_can_change_between_epochs(path):
    decoder = RandomResizedCropRGBImageDecoder((12, 12))
    made = loader(path, [decoder, ToTensor(), ToTorchImage()])
    shapes = []
    for side in (12, 8, 10):
        decoder.output_size = (side, side)
        shapes += {tuple(images.shape[1:]) for images, _ in made}
    assert shapes == [(3, 12, 12), (3, 8, 8), (3, 10, 10)]


def test_a_filter_of_a_filter_keeps_the_right_samples(path):
    made = loader(path, None, [IntDecoder(), ToTensor(), Squeeze()], batch_size=4)
    even = made.filter("label", lambda label: label % 2 == 0)
    both = even.filter("label", lambda label: label % 3 == 0)
    assert torch.cat([labels for (labels,) in even]).tolist() == list(range(0, 25, 2))
    assert torch.cat([labels for (labels,) in both]).tolist() == [0, 6, 12, 18, 24]


def test_labels_are_mixed_as_the_images_are(path, samples):
    image = [SimpleRGBImageDecoder(), ImageMixup(0.5, False), ToTensor()]
    label = [IntDecoder(), LabelMixup(0.5, False), ToTensor(), MixupToOneHot(25)]
    for step, (images, shares) in enumerate(loader(path, image, label)):
        rows = np.arange(10 * step, min(10 * step + 10, 25))
        assert torch.allclose(shares.sum(1), torch.ones(len(rows)))
        own = shares[range(len(rows)), rows].numpy()[:, None, None, None]
        mixed = own * samples.pixels[rows] + (1 - own) * samples.pixels[np.roll(rows, 1)]
        np.testing.assert_allclose(images.numpy(), mixed, atol=1.001)


def test_chosen_samples_are_poisoned_and_relabelled(path, samples):
    mask, alpha = np.full((16, 16, 3), 255.0), np.full((16, 16), 0.5)
    image = [SimpleRGBImageDecoder(), Poison(mask, alpha, [3]), ToTensor()]
    images, labels = next(iter(loader(path, image, [IntDecoder(), ReplaceLabel([3, 5], 99), ToTensor(), Squeeze()])))
    assert labels.tolist() == [0, 1, 2, 99, 4, 99, 6, 7, 8, 9]
    wanted = samples.pixels[:10].copy()
    wanted[3] = (wanted[3] * 0.5 + 127.5).astype(np.uint8)
    assert np.array_equal(images.numpy(), wanted)


class AddTo(Operation):
    """The documentation's kind of an operation: adds what the samples' table says."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def generate_code(self):
        table, over = self.table, Compiler.get_iterator()

        def add(values, memory, indices):
            for i in over(values.shape[0]):
                memory[i] = values[i] + table[indices[i]]
            return memory

        add.is_parallel = True
        add.with_indices = True
        return add

    def declare_state_and_memory(self, previous_state):
        return replace(previous_state, jit_mode=True), AllocationQuery(previous_state.shape, previous_state.dtype)


def test_an_operation_of_the_users_own_runs_compiled_and_anywhere_in_the_list(path, samples):
    table = np.arange(100, 125)
    label = [IntDecoder(), AddTo(table), ReplaceLabel([1], -1), ToTensor(), Squeeze()]
    image = [
        SimpleRGBImageDecoder(),
        AddTo(np.full(25, 1, np.uint8)),
        RandomHorizontalFlip(1.0),
        ToTensor(),
        ToTorchImage(),
    ]
    made = list(loader(path, image, label))
    assert torch.cat([labels for _, labels in made]).tolist() == [100, -1, *range(104, 150, 2)]
    images = torch.cat([images for images, _ in made]).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(images, (samples.pixels + 1)[:, :, ::-1])


def test_random_transforms_behind_an_operation_of_the_users_own_follow_the_seed(path):
    def epoch(**options):
        image = [SimpleRGBImageDecoder(), AddTo(np.zeros(25, np.uint8)), RandomHorizontalFlip(), ToTensor()]
        return torch.cat([images for images, _ in loader(path, image, **options)])

    assert torch.equal(epoch(seed=1), epoch(seed=1, batch_size=4, num_workers=1))
    assert not torch.equal(epoch(seed=1), epoch(seed=2))


def test_several_pipelines_of_one_field(path, samples):
    pipelines = {"second": PipelineSpec("image", SimpleRGBImageDecoder(), [ToTensor(), ToTorchImage()]), "x": None}
    images, labels, second = next(iter(Loader(path, 10, num_workers=2, pipelines=pipelines)))
    assert np.array_equal(images.numpy(), samples.pixels[:10]) and labels.shape == (10, 1)
    assert torch.equal(second.permute(0, 2, 3, 1), images)


def test_torch_modules_get_the_batch_and_their_errors_name_them(path):
    double = torch.nn.Module()
    double.forward = lambda images: images * 2
    image = [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage(), Convert(torch.float16), double]
    images, _ = next(iter(loader(path, image)))
    assert images.dtype is torch.float16 and images.max() > 400
    image[-1] = torch.nn.Linear(3, 3)
    with pytest.raises(TransformError, match=r"pipelines\['image'\]\[4\] \(ModuleWrapper\)"):
        next(iter(loader(path, image)))


def test_kept_batches_and_abandoned_iterators_do_no_harm(path, samples):
    made = loader(path, [SimpleRGBImageDecoder(), ToTensor()])
    kept = [next(iter(made))[0] for _ in range(100)]
    assert all(np.array_equal(images.numpy(), samples.pixels[:10]) for images in kept)


def test_arrays_bytes_and_json_come_back_as_they_were_written(tmp_path):
    values = [
        (np.arange(6, dtype=np.int16).reshape(2, 3) + i, np.arange(i, dtype=np.uint8), {"n": i}) for i in range(5)
    ]
    fields = {"array": NDArrayField(np.dtype(np.int16), (2, 3)), "bytes": BytesField(), "json": JSONField()}
    DatasetWriter(tmp_path / "f.beton", fields, num_workers=2).from_indexed_dataset(values, chunksize=2)
    arrays, raw, texts = next(iter(Loader(tmp_path / "f.beton", 5, num_workers=2)))
    assert np.array_equal(arrays.numpy(), [array for array, _, _ in values])
    assert raw.tolist() == [[*range(i), *[0] * (4 - i)] for i in range(5)]
    assert JSONField.unpack(texts) == [{"n": i} for i in range(5)] and JSONField.unpack(texts[3]) == {"n": 3}


def test_bytes_may_be_numbers_of_another_dtype_if_they_are_bytes(tmp_path):
    writer = DatasetWriter(tmp_path / "f.beton", {"bytes": BytesField()}, num_workers=1)
    writer.from_indexed_dataset([(np.array([0.0, 255.0]),)])
    assert next(iter(Loader(tmp_path / "f.beton", 1)))[0].tolist() == [[0, 255]]
    for wrong in (np.array([0.5]), np.array([256]), np.array([np.nan])):
        with pytest.raises(UsageError, match="field 'bytes': expected bytes"):
            writer.from_indexed_dataset([(wrong,)])


def test_the_file_does_not_depend_on_the_number_of_workers(tmp_path, samples):
    def written(num_workers, **options):
        path = tmp_path / f"{num_workers}.beton"
        image = RGBImageField(write_mode="proportion", max_resolution=12, jpeg_quality=80)
        fields = {"image": image, "label": IntField(), "x": FloatField()}
        DatasetWriter(path, fields, num_workers=num_workers).from_indexed_dataset(samples, chunksize=4, **options)
        return path.read_bytes()

    assert written(1) == written(2)
    reader = dataloading.Reader(tmp_path / "2.beton")
    modes = reader.column("image")["mode"].tolist()
    assert set(modes) == {0, 1} and set(reader.column("image")["width"].tolist()) == {12}


def test_a_sample_that_does_not_fit_is_named_and_no_file_is_left(tmp_path):
    values = [(1.0, 2), (1.0, 2.5)]
    writer = DatasetWriter(tmp_path / "f.beton", {"a": FloatField(), "b": IntField()}, num_workers=1)
    with pytest.raises(UsageError, match=r"sample 1 \(dataset\[1\]\), field 'b'"):
        writer.from_indexed_dataset(values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"custom_fields": {"nothing": RGBImageField}}, "it has image, label, x"),
        ({"order": "random"}, "OrderOption"),
        ({"distributed": True}, "init_process_group"),
        ({"pipelines": {"image": [IntDecoder()]}}, "SimpleRGBImageDecoder"),
        ({"pipelines": {"image": PipelineSpec(ToTensor())}}, "name of a field as its source"),
        ({"pipelines": {"nothing": [IntDecoder()]}}, "it has image, label, x"),
        ({"pipelines": {"image": [ToTensor]}}, r"write ToTensor\(...\)"),
    ],
)
def test_what_is_not_supported_is_refused_with_what_to_do(path, change, text):
    with pytest.raises(UsageError, match=text):
        Loader(path, 10, **change)


def test_kinds_that_ffcv_lacks_are_refused_and_can_be_left_out(tmp_path):
    fields = {"text": dataloading.TextField(), "label": dataloading.IntField()}
    with dataloading.Writer(tmp_path / "t.beton", fields, num_samples=1) as writer:
        writer.append({"text": "a", "label": 1})
    with pytest.raises(UsageError, match=r"TextField, which FFCV does not have.*pipelines=\{'text': None\}"):
        Loader(tmp_path / "t.beton", 1)
    assert next(iter(Loader(tmp_path / "t.beton", 1, pipelines={"text": None})))[0].tolist() == [[1]]


SCRIPT = """
import sys, json
from ffcv.loader import Loader, OrderOption
from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder
from ffcv.transforms import ToTensor, ToTorchImage, Squeeze
from ffcv.transforms.common import Squeeze as same
assert Squeeze is same
path, side = sys.argv[1:]
image = [CenterCropRGBImageDecoder((int(side), int(side)), ratio=0.7), ToTensor(), ToTorchImage()]
pipelines = {"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()], "x": None}
images, labels = next(iter(Loader(path, 25, num_workers=2, order=OrderOption.SEQUENTIAL, pipelines=pipelines)))
print(json.dumps([Loader.__module__, labels.tolist(), images.float().mean((1, 2, 3)).tolist()]))
"""


def run_script(*command):
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_script_runs_unedited_and_the_crop_is_the_square_in_the_middle(path, samples, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    module, labels, means = run_script("-m", "dataloading.ffcv", str(tmp_path / "script.py"), str(path), "11")
    assert module == "dataloading.ffcv.loader.loader" and labels == list(range(25))
    # int(0.7 * 16) = 11 pixels, from (16 - 11) // 2 = 2 on
    np.testing.assert_allclose(means, samples.pixels[:, 2:13, 2:13].mean((1, 2, 3)), atol=0.01)


@pytest.mark.ffcv
@pytest.mark.slow
def test_the_real_ffcv_works_beside_ours_and_gives_the_same_values(path, tmp_path):
    (tmp_path / "script.py").write_text("import dataloading.ffcv\n" + SCRIPT)
    module, labels, means = run_script("-W", "ignore", str(tmp_path / "script.py"), str(path), "11")
    assert module == "ffcv.loader.loader"
    assert [labels, means] == run_script("-m", "dataloading.ffcv", str(tmp_path / "script.py"), str(path), "11")[1:]


def test_importing_dataloading_does_not_import_it():
    code = (
        "import dataloading, sys; dataloading.Loader; print('dataloading.ffcv' in sys.modules or 'ffcv' in sys.modules)"
    )
    assert run_script("-c", code.replace("print(", "print(1 * (") + ")") == 0


def test_install_refuses_where_the_real_package_is_imported_already(monkeypatch):
    monkeypatch.setitem(sys.modules, "ffcv", json)
    with pytest.raises(UsageError, match="before it"):
        ffcv.install()


def test_the_center_crop_also_enlarges_and_distorts(path):
    image = [CenterCropRGBImageDecoder((20, 24), ratio=1), ToTensor()]
    assert next(iter(loader(path, image)))[0].shape == (10, 20, 24, 3)
