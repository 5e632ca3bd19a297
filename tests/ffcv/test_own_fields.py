"""Fields and decoders of the user's own, as FFCV's documentation has them."""

from __future__ import annotations

import numpy as np
import pytest

import dataloading
from dataloading.errors import UsageError
from dataloading.ffcv.fields import Field, IntField, NDArrayField, RGBImageField
from dataloading.ffcv.fields.base import ARG_TYPE
from dataloading.ffcv.fields.basics import IntDecoder
from dataloading.ffcv.fields.decoders import NDArrayDecoder
from dataloading.ffcv.fields.rgb_image import ResizedCropRGBImageDecoder
from dataloading.ffcv.libffcv import imdecode, memcpy, resize_crop
from dataloading.ffcv.loader import Loader
from dataloading.ffcv.memory_managers import OSCacheManager
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.operation import Operation
from dataloading.ffcv.pipeline.state import State
from dataloading.ffcv.reader import Reader
from dataloading.ffcv.transforms import Squeeze, ToTensor
from dataloading.ffcv.writer import DatasetWriter

WORDS = ["a", "beta", "", "delta!", "e"]


class WordsDecoder(Operation):
    def declare_state_and_memory(self, previous_state: State):
        shape, dtype = (self.field.longest,), np.dtype(np.uint8)
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)

    def generate_code(self):
        read, over, copy = self.memory_read, Compiler.get_iterator(), Compiler.compile(memcpy)

        def decode(indices, out, metadata, storage_state):
            for i in over(len(indices)):
                record = metadata[indices[i]]
                if record["length"] > 0:
                    copy(read(record["where"], storage_state), out[i])
            return out

        decode.is_parallel = True
        return decode


class WordsField(Field):
    """Text of at most `longest` letters."""

    metadata_type = np.dtype([("length", "<u2"), ("where", "<u8")])

    def __init__(self, longest):
        self.longest = longest

    @staticmethod
    def from_binary(binary):
        return WordsField(int(binary[0]))

    def to_binary(self):
        binary = np.zeros(1, ARG_TYPE)[0]
        binary[0][0] = self.longest
        return binary

    def encode(self, destination, value, malloc):
        destination["length"] = len(value)
        if value:
            destination["where"], memory = malloc(len(value))
            memory[:] = np.frombuffer(value.encode(), np.uint8)

    def get_decoder_class(self):
        return WordsDecoder


class PaddedField(NDArrayField):
    """A field derived from one of FFCV's, with values of another kind."""

    def __init__(self):
        super().__init__(np.dtype(np.uint8), (6,))

    def encode(self, destination, value, malloc):
        super().encode(destination, np.frombuffer(value.ljust(6).encode(), np.uint8), malloc)


@pytest.fixture
def interpreted():
    """Decoders run as they are, without the seconds that Numba takes."""
    Compiler.set_enabled(False)
    yield
    Compiler.set_enabled(True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "words.beton"
    fields = {"label": IntField(), "word": WordsField(7), "padded": PaddedField()}
    samples = [(i, word, word) for i, word in enumerate(WORDS)]
    DatasetWriter(path, fields, num_workers=2).from_indexed_dataset(samples, chunksize=2)
    return path


OWN = {"word": WordsField, "padded": PaddedField}


def words(rows):
    return [bytes(row).rstrip(b"\0 ").decode() for row in np.asarray(rows)]


@pytest.mark.parametrize("compiled", [True, False])
def test_values_of_own_fields_come_back_as_they_were_written(path, compiled):
    Compiler.set_enabled(compiled)
    try:
        loader = Loader(path, 2, custom_fields=OWN, drop_last=False, num_workers=1)
        batches = list(loader)
    finally:
        Compiler.set_enabled(True)
    assert [words(word) for _, word, _ in batches] == [WORDS[:2], WORDS[2:4], WORDS[4:]]
    assert [words(padded) for _, _, padded in batches] == [WORDS[:2], WORDS[2:4], WORDS[4:]]
    assert np.concatenate([label[:, 0] for label, _, _ in batches]).tolist() == list(range(5))
    assert loader.reader.handlers["word"].longest == 7


@pytest.mark.usefixtures("interpreted")
def test_a_file_that_holds_own_fields_only(tmp_path):
    writer = DatasetWriter(tmp_path / "w.beton", {"word": WordsField(7)}, num_workers=1)
    writer.from_indexed_dataset([(word,) for word in WORDS])
    options = {"custom_fields": {"word": WordsField}, "pipelines": {"word": [WordsDecoder()]}, "drop_last": False}
    loader = Loader(tmp_path / "w.beton", 5, **options)
    (rows,) = next(iter(loader))
    assert isinstance(rows, np.ndarray) and words(rows) == WORDS
    assert words(next(iter(loader.filter("word", lambda row: bool(row[1]))))[0]) == ["beta", "delta!"]


def test_a_file_with_own_fields_is_refused_without_their_classes_and_our_loader_reads_the_rest(path):
    with pytest.raises(UsageError, match=r"'word', 'padded' holds .* custom_fields=\{'word': YourField\}"):
        Loader(path, 2, custom_fields={})
    with pytest.raises(UsageError, match="no field 'nothing'"):
        Loader(path, 2, custom_fields={**OWN, "nothing": WordsField})
    records = {"word": WordsField.metadata_type, "padded": "<u8"}
    loader = dataloading.Loader(path, batch_size=5, fields=["label"], custom_records=records, os_cache=False)
    assert next(iter(loader))["label"].tolist() == list(range(5))


class Careless(WordsField):
    def encode(self, destination, value, malloc):
        malloc(4)
        if value == "twice":
            malloc(4)


@pytest.mark.parametrize(("value", "text"), [("twice", "called malloc twice"), ("", "did not store the pointer")])
def test_an_encode_that_loses_its_bytes_is_refused(tmp_path, value, text):
    writer = DatasetWriter(tmp_path / "f.beton", {"word": Careless(3)}, num_workers=1)
    with pytest.raises(UsageError, match=rf"sample 0 .*field 'word'.*{text}"):
        writer.from_indexed_dataset([(value,)])


class Corner(ResizedCropRGBImageDecoder):
    """A crop of its own."""

    scale = ratio = 0.5

    @property
    def get_crop_generator(self):
        return lambda height, width, scale, ratio: (0, 0, int(height * scale), int(width * ratio))


class SmallNumbers(IntDecoder):
    dtype = np.dtype(np.int32)


@pytest.mark.usefixtures("interpreted")
def test_decoders_derived_from_ffcvs(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    numbers = np.arange(3, dtype=np.float32)
    for mode, close in (("raw", 0), ("jpg", 255)):
        fields = {"image": RGBImageField(mode), "label": IntField(), "x": NDArrayField(np.dtype(np.float32), (3,))}
        DatasetWriter(tmp_path / mode, fields, num_workers=1).from_indexed_dataset([(pixels, 7, numbers)] * 3)
        decoder = Corner((3, 4))
        plain = type("Plain", (NDArrayDecoder,), {"dtype": None})()
        pipelines = {"image": [decoder, ToTensor()], "label": [SmallNumbers(), ToTensor(), Squeeze()], "x": [plain]}
        loader = Loader(tmp_path / mode, 3, pipelines=pipelines)
        images, labels, arrays = next(iter(loader))
        np.testing.assert_allclose(images[2].numpy().astype(int), pixels[:3, :4], atol=close)
        assert labels.dtype.is_signed and labels.numpy().dtype == np.int32 and labels.tolist() == [7, 7, 7]
        assert np.array_equal(arrays[1], numbers)
        decoder.output_size = (6, 8)
        assert next(iter(loader))[0].shape == (3, 6, 8, 3)


def test_the_functions_of_libffcv_check_their_sizes(tmp_path):
    pixels = np.full((8, 8, 3), 90, np.uint8)
    data = np.frombuffer(dataloading.tools.encode_jpeg(pixels), np.uint8)
    out = np.zeros((8, 8, 3), np.uint8)
    imdecode(data, out, 8, 8)
    assert abs(out.astype(int) - 90).max() <= 1
    small = np.zeros((2, 3, 3), np.uint8)
    resize_crop(pixels, 2, 8, 0, 4, small)
    assert (small == 90).all()
    for call in (
        lambda: imdecode(data, small, 8, 8),
        lambda: imdecode(data, out, 8, 8, do_flip=True),
        lambda: imdecode(data[:20], out, 8, 8),
        lambda: resize_crop(pixels, 0, 9, 0, 4, small),
        lambda: memcpy(out, small),
    ):
        with pytest.raises(ValueError, match=r"imdecode|resize_crop|memcpy"):
            call()


@pytest.mark.usefixtures("interpreted")
def test_a_memory_manager_finds_the_bytes_of_a_sample(path):
    reader = Reader(path, OWN)
    manager = OSCacheManager(reader)
    read = manager.compile_reader()
    with manager.schedule_epoch([[0, 1]]) as context:
        found = read(int(reader.column("word")["where"][3]), context.state)
        assert bytes(found) == b"delta!"
        with pytest.raises(ValueError, match="no value begins"):
            read(1, context.state)
    assert list(manager.sample_to_pages) == list(range(5))
    assert set.union(*manager.page_to_samples.values()) == set(range(5))


def test_a_reader_has_ffcvs_fields(tmp_path):
    fields = {"image": RGBImageField(), "x": NDArrayField(np.dtype("<f4"), (2, 3)), "label": IntField()}
    sample = (np.zeros((2, 2, 3), np.uint8), np.zeros((2, 3), np.float32), 1)
    DatasetWriter(tmp_path / "f.beton", fields, num_workers=1).from_indexed_dataset([sample])
    handlers = Reader(tmp_path / "f.beton").handlers
    assert [type(each) for each in handlers.values()] == [RGBImageField, NDArrayField, IntField]
    assert handlers["x"].shape == (2, 3) and handlers["x"].dtype == np.float32
    assert list(handlers) == ["image", "x", "label"]
