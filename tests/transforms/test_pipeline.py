"""The pipeline: order, buffers, purity, errors, and programs that outlive the process."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.testing import check_transform
from dataloading.transforms.pipeline import Pipeline, PipelineFault
from dataloading.transforms.rng import child, randint, uniform
from tests.transforms.support import apply, decode_raw, images, keys_for, run

ROOT = Path(__file__).resolve().parents[2]

# One program for several tests: values, a rectangle, a crop that repacks, grey, floats, a rectangle in floats, flips.
LONG = [
    T.RandomSolarize(100),
    T.Cutout(5, fill=9),
    T.RandomCrop((24, 21)),
    T.RandomGrayscale(0.5),
    T.Normalize((0.4, 0.5, 0.6), 0.25),
    T.RandomErasing(0.5, value=1.5),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(),
]


@pytest.fixture(scope="module")
def long_pipeline():
    return Pipeline(LONG, source_size=(31, 29))


def test_what_a_pipeline_says_of_itself(long_pipeline):
    assert long_pipeline.decode_shape == (3, 31, 29)
    assert long_pipeline.out_shape == (3, 24, 21)
    assert long_pipeline.out_dtype == "float32" and long_pipeline.storage_dtype == np.float32
    assert not long_pipeline.in_place and long_pipeline.batch_transforms == ()
    plain = Pipeline([T.RandomResizedCrop((8, 9)), T.RandomHorizontalFlip()])
    assert plain.in_place and plain.decode_shape == plain.out_shape == (3, 8, 9) and plain.out_dtype == "uint8"
    half = Pipeline([T.CenterCrop(8), T.Normalize(0.5, 0.5, dtype="bfloat16")], channels=1)
    assert half.out_dtype == "bfloat16" and half.storage_dtype == np.uint16 and half.out_shape == (1, 8, 8)


def test_fused_equals_one_transform_after_the_other(long_pipeline):
    """Each transform alone, at its own place of the list (so with its own random stream), on what came before."""
    decoded, keys = images(7, (3, 31, 29)), keys_for(7)
    got = run(long_pipeline, decoded, keys)
    still = T.RandomHorizontalFlip(0.0)
    stage = decoded
    for position, op in enumerate(LONG[:5]):
        # A crop with no change of pixels before it would become part of decoding.
        first = T.Cutout(1, p=0.0) if isinstance(op, T.RandomCrop) else still
        stage = apply([*[first, still, still, still][:position], op], stage, keys)
    zeros = np.zeros((7, 3, 24, 21), np.uint8)
    erased = apply([T.ToDtype(), still, still, still, still, LONG[5]], zeros, keys)
    assert 0 < (erased == 1.5).mean() < 0.5
    stage = np.where(erased == 1.5, np.float32(1.5), stage)
    flipped = []
    for image, key in zip(stage, keys, strict=True):
        image = image[:, :, ::-1] if uniform(child(int(key), 6), 0) < 0.5 else image
        flipped.append(image[:, ::-1] if uniform(child(int(key), 7), 0) < 0.5 else image)
    assert np.array_equal(got, np.stack(flipped))


def test_any_grouping_and_any_thread_gives_the_same_bytes(long_pipeline):
    decoded, keys = images(13, (3, 31, 29), 1), keys_for(13, 1)
    want = run(long_pipeline, decoded, keys)
    for size in (1, 2, 5, 13):
        parts = [run(long_pipeline, decoded[i : i + size], keys[i : i + size]) for i in range(0, 13, size)]
        assert np.array_equal(np.concatenate(parts), want)
    results = {}

    def work(number):
        results[number] = run(long_pipeline, decoded, keys)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(np.array_equal(r, want) for r in results.values())
    assert not np.array_equal(run(long_pipeline, decoded, keys_for(13, 2)), want)


def test_flips_behind_colours_move_into_decoding_and_change_nothing():
    """The same pixels as decoding, colours, and then mirroring by hand."""
    tail = [T.RandomGrayscale(0.5), T.Normalize(0.5, 0.25), T.RandomHorizontalFlip()]
    source = [np.random.default_rng(n).integers(0, 256, (9, 14, 3), dtype=np.uint8) for n in range(11)]
    keys = keys_for(11)
    moved = Pipeline(tail, source_size=(9, 14))
    assert moved.operations == ("RandomGrayscale", "Normalize")
    got = run(moved, decode_raw(moved, source, keys), keys)
    plain = Pipeline([*tail[:2], T.RandomHorizontalFlip(0.0)], source_size=(9, 14))
    unflipped = run(plain, decode_raw(plain, source, keys), keys)
    flips = [np.array_equal(g, u[:, :, ::-1]) for g, u in zip(got, unflipped, strict=True)]
    assert all(f or np.array_equal(g, u) for f, g, u in zip(flips, got, unflipped, strict=True))
    assert 2 < sum(flips) < 9


def test_moving_kernels_move_the_right_pixels():
    """Translation and crops that stand behind a change of pixels, against slices."""
    decoded, keys = images(20, (3, 12, 15)), keys_for(20)
    shifted = apply([T.Cutout(1, p=0.0), T.RandomTranslate(6, fill=(1, 2, 3))], decoded, keys)
    cropped = apply([T.Cutout(1, p=0.0), T.RandomCrop((7, 10))], decoded, keys)
    middle = apply([T.Cutout(1, p=0.0), T.CenterCrop((7, 10))], decoded, keys)
    for n, key in enumerate(keys):
        stream = child(int(key), 1)
        padded = np.pad(decoded[n], ((0, 0), (6, 6), (6, 6)))
        for c in range(3):
            padded[c] = c + 1
        padded[:, 6:18, 6:21] = decoded[n]
        y, x = randint(stream, 0, 13), randint(stream, 1, 13)
        assert np.array_equal(shifted[n], padded[:, y : y + 12, x : x + 15])
        y, x = randint(stream, 0, 6), randint(stream, 1, 6)
        assert np.array_equal(cropped[n], decoded[n][:, y : y + 7, x : x + 10])
        assert np.array_equal(middle[n], decoded[n][:, 2:9, 2:12])


def test_in_place_pipelines_work_in_the_slot_or_from_another_buffer():
    pipeline = Pipeline([T.RandomInvert(1.0)], source_size=(6, 7))
    decoded = images(3, (3, 6, 7))
    slot = decoded.copy()
    pipeline.run(slot, keys_for(3), slot)
    out = np.zeros_like(decoded)
    pipeline.run(decoded, keys_for(3), out)
    assert np.array_equal(slot, 255 - decoded) and np.array_equal(out, slot)
    nothing = Pipeline([], source_size=(6, 7))
    nothing.run(decoded, keys_for(3), out)
    assert np.array_equal(out, decoded)


def test_a_kernel_that_raises_names_the_sample_and_the_rest_can_go_on():
    @numba.njit(nogil=True)
    def picky(image, key):
        if image[0, 0, 0] == 13:
            raise ValueError("unlucky")
        image[0, 0, 0] += 1

    pipeline = Pipeline([T.RandomInvert(0.0), T.Custom(picky)], source_size=(4, 4))
    decoded = np.zeros((9, 3, 4, 4), np.uint8)
    decoded[7, 0, 0, 0] = 13
    with pytest.raises(PipelineFault, match=r"transform 1 \(Custom\(picky\)\): unlucky") as info:
        pipeline.run(decoded, keys_for(9), decoded)
    assert info.value.position == 7
    assert isinstance(info.value.cause, ValueError) and info.value.__cause__ is info.value.cause
    pipeline.run(decoded, keys_for(9), decoded, start=8)
    assert decoded[:, 0, 0, 0].tolist() == [1] * 7 + [13, 1]


def test_custom_functions_draw_from_their_own_stream_and_may_write_the_output():
    def noise(image, key, out):
        for c in range(out.shape[0]):
            for y in range(out.shape[1]):
                for x in range(out.shape[2]):
                    out[c, y, x] = image[c, y, x] + np.float32(T.uniform(key, x))

    op = T.Custom(noise, name="noise", in_place=False, out_dtype="float32", out_shape=(1, 3, 5))
    decoded, keys = images(3, (3, 4, 5)), keys_for(3)
    got = apply([T.RandomInvert(0.0), op], decoded, keys)
    for image, source, key in zip(got, decoded, keys, strict=True):
        offsets = [uniform(child(int(key), 1), x) for x in range(5)]
        np.testing.assert_allclose(image, source[:1, :3] + np.array(offsets), rtol=1e-6)


def test_a_custom_function_that_does_not_compile_is_refused_by_name():
    def hopeless(image, key):
        return open(image)

    pipeline = Pipeline([T.RandomInvert(0.0), T.Custom(hopeless)], source_size=(4, 4))
    with pytest.raises(UsageError, match=r"transform 1 \(Custom\(hopeless\)\) does not compile. Numba says"):
        pipeline.warm_up()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Custom(3), "fn must be a function, got int"),
        (lambda: T.Custom(lambda image: None), r"must take \(image, key\) with in_place=True"),
        (lambda: T.Custom(lambda image, key: None, in_place=False), r"must take \(image, key, out\)"),
        (lambda: T.Custom(lambda image, key: None, out_shape=(1, 2, 3)), "need in_place=False"),
        (lambda: T.Custom(lambda i, k, o: None, in_place=False, out_shape=(1, 2)), "out_shape must be"),
        (lambda: [T.Normalize(0, 1, dtype="float16"), T.Custom(lambda image, key: None)], "cannot compute on float16"),
        (lambda: [T.Custom(lambda i, k, o: None, in_place=False), T.Normalize(0, 1)], "Give that one in_place=True"),
    ],
)
def test_custom_is_checked(make, message):
    with pytest.raises(UsageError, match=message):
        Pipeline(make(), source_size=(4, 4))


class Module:
    """Stands for a torch module: a callable that is not ours."""

    def __call__(self, images):
        return images


def test_what_is_not_ours_runs_after_batching_with_all_that_follows():
    module, mix = Module(), T.CutMix(num_classes=3)
    pipeline = Pipeline([T.CenterCrop(8), T.Normalize(0.5, 0.5), module, mix])
    assert pipeline.batch_transforms == (module, mix)
    assert Pipeline([T.CenterCrop(8), mix]).batch_transforms == (mix,)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([T.CenterCrop(8), Module(), T.Normalize(0, 1)], r"transform 2 \(Normalize\) .* behind transform 1 \(Module\)"),
        ([T.CenterCrop(8), T.MixUp(num_classes=2), T.RandomHorizontalFlip()], "Move it before that"),
        ([T.CenterCrop], r"transform 0 is the class CenterCrop, not an instance. Write CenterCrop\(...\)"),
        ([T.CenterCrop(8), "flip"], "transform 1 must be a transform .* got str: 'flip'"),
        ([T.CenterCrop(8), None], "transform 1 must be a transform .* got NoneType"),
        ([T.Grayscale(), T.Resize((4, 4))], "transform 1: Resize after a transform that changes pixels .* front"),
        ([T.Cutout(2), T.CenterCrop(99)], "transform 1: CenterCrop: padding after a transform .* front"),
        ([T.Cutout(2), T.RandomCrop(4, padding=1)], "transform 1: RandomCrop after a transform that changes pixels"),
        (
            [T.Normalize(0, 1), T.RandomCrop(4)],
            "transform 1: RandomCrop cannot follow",
        ),
        ([T.Normalize(0, 1), T.RandomTranslate(4)], "transform 1: RandomTranslate needs uint8 images"),
        ("flip", "transforms must be a list, got str"),
        (T.CenterCrop(8), "transforms must be a list, got CenterCrop"),
    ],
)
def test_lists_that_cannot_work_are_refused(chain, message):
    with pytest.raises(UsageError, match=message):
        Pipeline(chain, source_size=(8, 8))


def test_arrays_of_another_shape_or_type_are_refused():
    pipeline = Pipeline([T.RandomInvert()], source_size=(4, 5))
    good, keys = np.zeros((2, 3, 4, 5), np.uint8), keys_for(2)
    for decoded, k, out in [
        (good[:, :, :, ::-1], keys, good),
        (good.astype(np.int8), keys, good),
        (good, keys[:1], good),
        (good, keys.astype(np.int64), good),
        (good, keys, np.zeros((2, 3, 5, 4), np.uint8)),
    ]:
        with pytest.raises(UsageError, match="must be a contiguous"):
            pipeline.run(decoded, k, out)


def test_check_transform_accepts_good_kernels_and_catches_bad_ones():
    def out_of_bounds(image, key):
        image[image.shape[0], 0, 0] = 1

    def writes_too_little(image, key, out):
        out[0, 0, 0] = image[0, 0, 0]

    check_transform(T.Cutout(3))
    check_transform(T.RandomErasing(value="random"), on_floats=True)
    with pytest.raises(AssertionError, match="wrote outside its image"):
        check_transform(T.Custom(out_of_bounds), shape=(1, 6, 7))
    with pytest.raises(AssertionError, match="write every pixel of out"):
        check_transform(T.Custom(writes_too_little, in_place=False))
    with pytest.raises(UsageError, match="takes a transform of pixels"):
        check_transform(T.RandomHorizontalFlip())


def test_importing_transforms_imports_neither_numba_nor_torch():
    code = "import sys; from dataloading import transforms; print('numba' in sys.modules, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


PROGRAM = """
import sys
import numpy as np
from dataloading import transforms as T
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.kernels import store
pipeline = Pipeline([T.RandomInvert()], source_size=(5, 7))
pixels = np.arange(105, dtype=np.uint8).reshape(1, 3, 5, 7).repeat(3, 0)
pipeline.run(pixels, np.arange(3, dtype=np.uint64), pixels)
(origin,) = store.origins().values()
print(pixels.tobytes().hex(), origin, "numba" in sys.modules)
"""


def start(cache):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "BETON_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out.split()


def test_processes_that_start_together_share_one_stored_kernel(tmp_path):
    """Two at once into an empty folder and one that has none, then one that finds the kernel and needs no Numba, then
    one that finds it damaged: the same pixels from all, and no error."""
    cache, blocked = tmp_path / "cache", tmp_path / "file"
    blocked.write_text("not a folder")
    first = [finish(p) for p in [start(cache), start(cache), start(blocked / "below")]]
    pixels = first[0][0]
    assert all(result[0] == pixels for result in first) and first[2][1] == "compiled"
    assert blocked.read_text() == "not a folder"
    (file,) = cache.iterdir()
    assert finish(start(cache)) == [pixels, "stored", "False"]
    file.write_bytes(file.read_bytes()[:100])
    assert finish(start(cache)) == [pixels, "compiled", "True"]
    assert finish(start(cache)) == [pixels, "stored", "False"]
