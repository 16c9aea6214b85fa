"""The command line: the tour end to end, its claims, its ways to fail, the picture, and the kernel cache."""

import contextlib
import dataclasses
import importlib.util
import io
import math
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import __main__ as command_line
from jitgrad import config, tour
from jitgrad.kernels.report import CacheInfo, cache_info, clear_cache
from jitgrad.tour import digits
from jitgrad.tour.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def run_command(*arguments: str, cache: Path | None = None, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``python -m jitgrad`` in a new process; ``before`` is code that is run first."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    if cache is not None:
        environment["JITGRAD_CACHE_DIR"] = str(cache)
    code = f"{before}\nimport runpy, sys\nsys.argv[0] = 'jitgrad'\nrunpy.run_module('jitgrad', run_name='__main__')"
    start = ["-c", code] if before else ["-m", "jitgrad"]
    return subprocess.run(
        [sys.executable, *start, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def result() -> tour.TourResult:
    return tour.run()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


class TestClaims:
    def test_all_hold(self, result: tour.TourResult) -> None:
        assert result.problems() == []

    def test_detach_example(self, result: tour.TourResult) -> None:
        assert result.example.gradient == (2.0, 4.0, 6.0)
        assert result.example.shared
        assert "requires_grad" in str(result.example.refusal)

    def test_network(self, result: tour.TourResult) -> None:
        learning = result.learning
        assert learning.accuracy >= 0.95
        assert learning.accuracy_before >= 0.95
        assert learning.moved == 0.0
        assert learning.frozen_without_gradient
        assert learning.flow_without_detach > 1e-4
        assert len(learning.loss_before) == len(learning.loss) == 20
        assert learning.loss_before[-1] < 0.1 * learning.loss_before[0]
        assert learning.loss[-1] < 0.2 * learning.loss[0]

    def test_gradient_and_cache(self, result: tour.TourResult) -> None:
        assert 0.0 < result.gradient_error <= 1e-6
        assert result.cache.compiled + result.cache.loaded > 0 or config.settings().kernels == "python"
        assert any("tanh" in name for name in result.cache.kernels)

    def test_losses_again_in_numpy(self, result: tour.TourResult) -> None:
        """The loss that is drawn, computed with NumPy from the weights alone."""
        loss, hidden, parameters = result.learning.fine_tuning
        values = [p.detach().numpy() for p in parameters.values()]
        rng = np.random.default_rng(0)
        digits.load(0, 4, rng)
        data, _ = digits.load(5, 9, rng)
        features = np.tanh(data.pixels @ values[0] + values[1])
        np.testing.assert_allclose(hidden.detach().numpy(), features, rtol=1e-12, atol=1e-14)
        scores = features @ values[2] + values[3]
        right = scores[np.arange(len(scores)), data.classes]
        expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - right)
        assert loss.item() == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        ("part", "change", "message"),
        [
            ("example", {"gradient": (4.0, 8.0, 12.0)}, "gradient of the example"),
            ("example", {"gradient": ()}, "gradient of the example"),
            ("example", {"shared": False}, "share the memory"),
            ("example", {"refusal": None}, "NoGraphError"),
            ("learning", {"accuracy_before": 0.9}, "90.0% of the held-out digits 0 to 4"),
            ("learning", {"accuracy": 0.949}, "94.9% of the held-out digits 5 to 9"),
            ("learning", {"accuracy": math.nan}, "held-out digits 5 to 9"),
            ("learning", {"moved": 1e-300}, "a frozen weight moved"),
            ("learning", {"moved": math.nan}, "a frozen weight moved"),
            ("learning", {"frozen_without_gradient": False}, "through detach"),
            ("learning", {"flow_without_detach": 0.0}, "no gradient to stop"),
            (None, {"gradient_error": 1e-5}, "the gradient is off by 1.0e-05"),
            (None, {"gradient_error": math.nan}, "the gradient is off"),
        ],
    )
    def test_each_failure_is_named_and_ends_with_1(
        self,
        result: tour.TourResult,
        part: str | None,
        change: dict[str, object],
        message: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        if part is None:
            broken = dataclasses.replace(result, **change)
        else:
            broken = dataclasses.replace(result, **{part: dataclasses.replace(getattr(result, part), **change)})
        monkeypatch.setattr(tour, "run", lambda: broken)
        assert command_line.main([]) == 1
        shown = capsys.readouterr()
        assert re.fullmatch(rf"FAILED: [^\n]*{re.escape(message)}[^\n]*\n", shown.err)
        assert "holds" not in shown.out


class TestBrokenLibrary:
    """The tour must not be blind: it has to notice when jitgrad is wrong."""

    def test_detach_that_does_not_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jg.Tensor, "detach", lambda self: self)
        example = tour.show_detach()
        assert example.gradient == (4.0, 8.0, 12.0)
        assert example.refusal is None

    def test_frozen_weights_that_get_a_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tour, "_EPOCHS", 1)
        real = jg.Tensor.detach
        # leaves are detached to read them out; results of operations are what the network freezes
        monkeypatch.setattr(jg.Tensor, "detach", lambda self: real(self) if self.is_leaf else self)
        learning = tour.learn()
        assert learning.moved > 0.0
        assert not learning.frozen_without_gradient

    def test_gradient_that_is_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = digits.cross_entropy

        def with_a_constant_in_disguise(found: jg.Tensor, classes: np.ndarray) -> jg.Tensor:
            value = real(found, classes)
            return value + (value - value.detach()) * 1e-4  # the same value, a gradient that is 0.01 % larger

        monkeypatch.setattr(tour, "cross_entropy", with_a_constant_in_disguise)
        assert tour.check_gradient() == pytest.approx(1e-4, rel=0.5)

    def test_gradient_that_is_missing(self) -> None:
        p = jg.tensor([1.0], requires_grad=True)
        q = jg.tensor([1.0], requires_grad=True)
        assert digits.gradient_error(lambda: jg.sum(p * p), [p, q], np.random.default_rng(0)) == math.inf


class TestDigits:
    def test_split(self) -> None:
        learned, held_out = digits.load(5, 9, np.random.default_rng(3))
        pixels = np.concatenate([learned.pixels, held_out.pixels])
        classes = np.concatenate([learned.classes, held_out.classes])
        table = np.loadtxt(ROOT / "jitgrad" / "data" / "digits.csv.gz", delimiter=",")
        assert len(held_out.classes) == 269
        table = table[table[:, 64] >= 5]
        ours = np.column_stack([pixels * 16, classes + 5])
        np.testing.assert_array_equal(ours[np.lexsort(ours.T)], table[np.lexsort(table.T)])

    def test_gradient_error_leaves_the_parameters_alone(self) -> None:
        p = jg.tensor([0.1, 0.7, -0.3], requires_grad=True)
        error = digits.gradient_error(lambda: jg.sum(p * p * p), [p], np.random.default_rng(0))
        assert error < 1e-9
        assert p.tolist() == [0.1, 0.7, -0.3]
        assert p.grad is None


class TestProcess:
    def test_cold_then_warm(self, cache: Path) -> None:
        start = time.perf_counter()
        cold = run_command(cache=cache)
        between = time.perf_counter()
        warm = run_command(cache=cache)
        end = time.perf_counter()
        assert (cold.returncode, cold.stderr) == (0, "")
        assert (warm.returncode, warm.stderr) == (0, "")
        assert between - start < 60.0
        assert end - between < 10.0
        assert re.search(r"^compiled +[1-9]\d* kernels? in", cold.stdout, re.MULTILINE)
        assert re.search(r"^compiled +0 kernels in 0\.00 s$", warm.stdout, re.MULTILINE)
        assert "(0 not found on disk)" in warm.stdout
        assert str(cache) in warm.stdout

    def test_what_is_printed(self, cache: Path) -> None:
        text = run_command(cache=cache).stdout
        assert ">>> x.grad\ntensor([2., 4., 6.])\n" in text
        accuracy = re.search(r"^([\d.]+)% of 269 held-out digits 5 to 9 are right\.$", text, re.MULTILINE)
        assert accuracy
        assert float(accuracy[1]) >= 95.0
        assert re.search(r"^[\d.]+% of 271 held-out digits 0 to 4 are right\.$", text, re.MULTILINE)
        assert re.search(r"^largest change of a frozen weight +0$", text, re.MULTILINE)
        assert re.search(r"^gradients of the frozen weights +None$", text, re.MULTILINE)
        error = re.search(r"^largest relative error +(\S+)$", text, re.MULTILINE)
        assert error
        assert float(error[1]) <= 1e-6
        assert text.endswith("Everything claimed above was checked, and holds.\n")
        # no terminal: whole lines of plain text
        assert text.isascii()
        assert "\r" not in text
        assert "\x1b" not in text
        assert max(map(len, text.replace(str(cache), "").splitlines())) <= 110

    @pytest.mark.skipif(not MATPLOTLIB, reason="needs matplotlib")
    def test_plot(self, cache: Path, tmp_path: Path) -> None:
        picture = tmp_path / "tour.png"
        done = run_command("--plot", str(picture), cache=cache)
        assert (done.returncode, done.stderr) == (0, "")
        data = picture.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert width >= 1200
        assert height >= 800

    def test_failure_ends_the_process_with_1(self, cache: Path) -> None:
        done = run_command(cache=cache, before="from jitgrad import tour\ntour.WANTED_ACCURACY = 1.01")
        assert done.returncode == 1
        assert "FAILED: " in done.stderr
        assert "101% are wanted" in done.stderr

    def test_plot_without_matplotlib(self, cache: Path, tmp_path: Path) -> None:
        before = "import sys\nsys.modules['matplotlib'] = None\nsys.modules['matplotlib.axes'] = None"
        done = run_command("--plot", str(tmp_path / "a.png"), cache=cache, before=before)
        assert done.returncode == 2
        assert "pip install 'jitgrad[plot]'" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

    def test_tour_without_matplotlib_and_tqdm(self, cache: Path) -> None:
        before = "import sys\nsys.modules['matplotlib'] = None\nsys.modules['tqdm'] = None"
        done = run_command(cache=cache, before=before)
        assert (done.returncode, done.stderr) == (0, "")

    def test_numba_is_not_loaded_for_help_and_cache(self, cache: Path) -> None:
        for arguments in (["--help"], ["cache"], ["--version"]):
            code = (
                "import sys\nfrom jitgrad.__main__ import main\n"
                f"try:\n    main({arguments})\nexcept SystemExit as end:\n    assert end.code == 0\n"
                "assert 'numba' not in sys.modules\nassert 'matplotlib' not in sys.modules"
            )
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_DIR": str(cache)}
            subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)

    def test_cache_command(self, tmp_path: Path) -> None:
        where = tmp_path / "kernels"
        empty = run_command("cache", cache=where)
        assert (empty.returncode, empty.stderr) == (0, "")
        assert "0 kernels, 0 bytes of at most 1.0 GiB" in empty.stdout
        code = "import jitgrad as jg\njg.tensor([1.0]) + 1.0"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_DIR": str(where)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        full = run_command("cache", cache=where)
        assert re.search(r"^on disk +1 kernel, [\d.]+ KiB of", full.stdout, re.MULTILINE)
        assert str(where) in full.stdout
        cleared = run_command("cache", "--clear", cache=where)
        assert re.search(r"^removed +1 file$", cleared.stdout, re.MULTILINE)
        assert re.search(r"^on disk +0 kernels", cleared.stdout, re.MULTILINE)

    @pytest.mark.skipif(not hasattr(os, "getuid"), reason="no permissions")
    def test_unsafe_cache_directory_is_explained(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "jitgrad", "cache"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "chmod go-w" in done.stderr

    @pytest.mark.skipif(os.name == "nt", reason="pipes break in another way")
    def test_a_reader_that_leaves(self, cache: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_DIR": str(cache)}
        with subprocess.Popen(
            [sys.executable, "-m", "jitgrad"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b"jitgrad ")
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=60) == 1

    def test_bad_setting(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_CACHE_SIZE": "much"}
        for arguments in ([], ["cache"]):
            done = subprocess.run(
                [sys.executable, "-m", "jitgrad", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 1
            assert "JITGRAD_CACHE_SIZE='much' is not a whole number" in done.stderr
            assert "Traceback" not in done.stderr


class TestArguments:
    def fails(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
        with pytest.raises(SystemExit) as end:
            command_line.main(arguments)
        assert end.value.code == 2
        shown = capsys.readouterr()
        assert shown.out == ""  # said before the tour begins
        return shown.err

    def test_unknown(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "unrecognized arguments: --plto" in self.fails(["--plto"], capsys)
        assert "invalid choice: 'cahce'" in self.fails(["cahce"], capsys)

    def test_plot_of_the_cache(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "belongs to the tour" in self.fails(["--plot", "a.png", "cache"], capsys)

    @pytest.mark.skipif(not MATPLOTLIB, reason="needs matplotlib")
    def test_files_that_cannot_be_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        missing = tmp_path / "missing" / "a.png"
        assert f"there is no directory {missing.parent}" in self.fails(["--plot", str(missing)], capsys)
        directory = tmp_path / "b.png"
        directory.mkdir()
        assert "is a directory" in self.fails(["--plot", str(directory)], capsys)
        for name in ("a.txt", "png", "a"):
            assert ".png" in self.fails(["--plot", str(tmp_path / name)], capsys)

    @pytest.mark.skipif(not MATPLOTLIB, reason="needs matplotlib")
    def test_no_permission(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write everywhere
        assert "permission denied" in self.fails(["--plot", str(tmp_path / "a.png")], capsys)

    @pytest.mark.skipif(not MATPLOTLIB, reason="needs matplotlib")
    def test_a_disk_that_fails_later(
        self,
        result: tour.TourResult,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from jitgrad.tour import drawing

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tour, "run", lambda: result)
        monkeypatch.setattr(drawing, "draw", full)
        with pytest.raises(SystemExit) as end:
            command_line.main(["--plot", str(tmp_path / "a.png")])
        assert end.value.code == 1
        assert "No space left on device" in capsys.readouterr().err

    def test_interrupted(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(tour, "run", interrupted)
        with pytest.raises(SystemExit) as end:
            command_line.main([])
        assert end.value.code == 130
        assert capsys.readouterr().err == "interrupted\n"

    def test_help_and_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        for argument, expected in (("--help", "--plot FILE.png"), ("--version", f"jitgrad {jg.__version__}")):
            with pytest.raises(SystemExit) as end:
                command_line.main([argument])
            assert end.value.code == 0
            assert expected in capsys.readouterr().out


@pytest.mark.skipif(not MATPLOTLIB, reason="needs matplotlib")
class TestDrawing:
    def test_recorded_graph(self) -> None:
        from jitgrad.tour.drawing import recorded

        w = jg.tensor([1.0, 2.0], requires_grad=True)
        v = jg.tensor([1.0, 2.0], requires_grad=True)
        frozen = jg.exp(v)
        shared = w * frozen.detach()
        graph = recorded(jg.sin(shared) + jg.cos(shared), {"w": w, "v": v})
        assert sorted(graph.labels.values()) == ["add", "cos", "multiply", "sin", "w"]
        named = sorted((graph.labels[a], graph.labels[b]) for a, b in graph.edges)
        assert named == [
            ("cos", "add"),
            ("multiply", "cos"),
            ("multiply", "sin"),
            ("sin", "add"),
            ("w", "multiply"),
        ]
        assert [graph.labels[key] for key in graph.leaves] == ["w"]
        place = {key: i for i, key in enumerate(graph.order)}
        assert len(place) == 5
        assert all(place[result] < place[operand] for operand, result in graph.edges)

    def test_the_cut_of_the_tour(self, result: tour.TourResult) -> None:
        from jitgrad.tour.drawing import recorded

        loss, hidden, names = result.learning.fine_tuning
        live, frozen = recorded(loss, names), recorded(hidden, names)
        assert {live.labels[key] for key in live.leaves} == {"new weight", "new bias"}
        assert {frozen.labels[key] for key in frozen.leaves} == {"weight", "bias"}
        assert not live.labels.keys() & frozen.labels.keys()

    def test_unnamed_leaf_and_untracked_result(self) -> None:
        from jitgrad.tour.drawing import recorded

        x = jg.tensor([1.0, 2.0], requires_grad=True)
        assert sorted(recorded(x * x, {}).labels.values()) == ["leaf (2,)", "multiply"]
        assert recorded(x.detach(), {}).labels == {}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    @pytest.fixture(params=["tqdm", "plain"])
    def bar(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "plain":
            monkeypatch.setattr("jitgrad.tour.progress.tqdm", None)
        else:
            pytest.importorskip("tqdm")

    @pytest.mark.usefixtures("bar")
    def test_on_a_terminal(self) -> None:
        with contextlib.redirect_stdout(Terminal()) as screen:
            progress = Progress(4, "learning")
            for i in progress:
                progress.note(i + 1, f"loss {i}")
        text = screen.getvalue()
        assert text.endswith("\n")
        last = text.rstrip("\n").rpartition("\r")[2]
        assert "learning" in last
        assert "4/4" in last
        assert "loss 3" in last
        assert "##########" in last

    @pytest.mark.usefixtures("bar")
    def test_an_error_ends_the_line(self) -> None:
        def learn() -> None:
            progress = Progress(4, "learning")
            for i in progress:
                progress.note(i + 1, "loss")
                raise ArithmeticError

        with contextlib.redirect_stdout(Terminal()) as screen, pytest.raises(ArithmeticError):
            learn()
        assert screen.getvalue().endswith("\n")

    def test_elsewhere(self, capsys: pytest.CaptureFixture[str]) -> None:
        for total, expected in ((20, [4, 8, 12, 16, 20]), (3, [1, 2, 3]), (7, [2, 3, 5, 6, 7])):
            progress = Progress(total, "learning")
            for i in progress:
                progress.note(i + 1, "loss")
            lines = capsys.readouterr().out.splitlines()
            assert lines == [f"  learning: epoch {n:>3} of {total}, loss" for n in expected]


class TestCacheInfo:
    def info(self, **changes: object) -> CacheInfo:
        plain = CacheInfo(
            compiled=2,
            loaded=1,
            misses=3,
            compile_seconds=0.456,
            load_seconds=0.01,
            setup_seconds=0.3,
            kernels=("add", "exp", "exp"),
            directory=Path("/somewhere"),
            entries=3,
            bytes=3 << 20,
            max_bytes=1 << 30,
        )
        return dataclasses.replace(plain, **changes)

    def test_text(self) -> None:
        assert str(self.info()).splitlines() == [
            "compiled    2 kernels in 0.46 s",
            "loaded      1 kernel in 0.01 s (3 not found on disk)",
            "set-up      0.30 s to start Numba",
            "in memory   3 kernels: add, exp (2)",
            f"directory   {Path('/somewhere')}",
            "on disk     3 kernels, 3.0 MiB of at most 1.0 GiB",
        ]

    def test_text_of_nothing(self) -> None:
        text = str(self.info(kernels=(), directory=None))
        assert "in memory   0 kernels\n" in text
        assert text.endswith("kept in memory only")

    def test_many_names_are_wrapped(self) -> None:
        lines = self.info(kernels=tuple(f"operation_{i}" for i in range(100))).process().splitlines()
        assert max(map(len, lines)) <= 100
        assert all(line.startswith(" " * 12) for line in lines[4:])

    def test_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            self.info().compiled = 1  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5 << 40, "5120.0 GiB")],
    )
    def test_sizes(self, count: int, text: str) -> None:
        assert f", {text} of" in self.info(bytes=count).disk()

    def test_counts_and_clear(self, tmp_path: Path) -> None:
        """In a directory of its own: nothing of the user's is cleared."""
        with config.override(cache_dir=tmp_path / "kernels"):
            before = cache_info()
            assert (before.entries, before.bytes) == (0, 0)
            assert before.directory == tmp_path / "kernels"
            shard = tmp_path / "kernels" / "ab"
            shard.mkdir(parents=True, mode=0o700)
            (shard / f"{'ab' * 32}.jgk").write_bytes(b"x" * 100)
            (shard / "mine.txt").write_bytes(b"y")
            full = cache_info()
            assert (full.entries, full.bytes) == (1, 100)
            assert clear_cache() == 1
            assert cache_info().entries == 0
            assert (shard / "mine.txt").exists()

    def test_off(self) -> None:
        with config.override(cache_size=0):
            info = cache_info()
            assert info.directory is None
            assert info.entries == 0
            assert clear_cache() == 0

    def test_names_and_counts_of_this_process(self) -> None:
        code = (
            "import jitgrad as jg\nfrom jitgrad.kernels.report import cache_info\n"
            "first = cache_info()\nassert first.kernels == () and first.compiled == first.loaded == 0, first\n"
            "x = jg.tensor([1.0, 2.0])\njg.exp(x); jg.exp(x); jg.exp(jg.tensor([1.0, 2.0, 3.0]))\n"
            "info = cache_info()\nassert len(info.kernels) == 1 and 'exp' in info.kernels[0], info\n"
            "assert info.compiled + info.loaded == 1, info\n"
            "assert info.compile_seconds + info.load_seconds > 0, info\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITGRAD_KERNELS": "compiled"}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
