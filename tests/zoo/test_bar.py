"""What a person sees on a terminal, as a terminal shows it: a pseudo-terminal in front, the emulator pyte behind."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

import pytest

from zoo.bar import Bar, Seen, Unbreakable, clock, fitting, words

ROOT = Path(__file__).resolve().parents[2]
STEPS = """
import sys, time, warnings
from pathlib import Path
from types import SimpleNamespace
from trainers.contract import Machine
from zoo.watch import RunWatch, bar_for
metric = SimpleNamespace(name="auc", higher_is_better=True)
say = lambda line: print(line, file=sys.stderr)
bar = bar_for("auc", Machine(memory_bytes=8 * 2**30))
print("bar" if bar else "no bar", flush=True)
watch = RunWatch(Path(sys.argv[1]), metric, say, bar=bar)
import contextlib
with bar or contextlib.nullcontext():
    for step in range(1, 21):
        facts = {"loss": 1 / step, "samples_per_second": 1234.5, "mfu": 0.231}
        watch.log(kind="step", step=step, progress=step / 20, **facts)
        if step % 10 == 0:
            watch.log(kind="eval", step=step, metric="auc", score=0.5 + step / 100, best=0.5 + step / 100, best_step=step)
        if step == 12:
            warnings.warn("a library is worried")
            print("a stray line", file=sys.stderr)
        if step == 15 and "hang up" in sys.argv:
            import os
            os.close(2)
print("trained", flush=True)
"""


def on_terminal(folder, *words, rows=24, columns=100, **environment):
    """(exit code, stdout, what the terminal was sent) of STEPS with a pseudo-terminal of that size as stderr."""
    front, back = pty.openpty()
    fcntl.ioctl(back, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", STEPS, str(folder), *words], stdout=subprocess.PIPE, stderr=back, stdin=subprocess.DEVNULL,
        env={**inherited, "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(back)
    sent = b""
    while process.poll() is None or select.select([front], [], [], 0)[0]:
        if select.select([front], [], [], 0.05)[0]:
            try:
                sent += os.read(front, 65536)
            except OSError:  # nobody holds the other end any more
                break
    os.close(front)
    return process.wait(), process.stdout.read().decode(), sent


def shown(sent, rows=24, columns=100):
    """The lines that a terminal shows after it was sent these bytes, and whether its cursor is hidden."""
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(columns, rows)
    pyte.ByteStream(screen).feed(sent)
    return [line.rstrip() for line in screen.display if line.strip()], screen.cursor.hidden


def test_a_terminal_shows_one_bar_below_all_lines_that_were_written_meanwhile(tmp_path):
    code, out, sent = on_terminal(tmp_path)
    lines, is_hidden = shown(sent)
    assert (code, out, is_hidden) == (0, "bar\ntrained\n", False)
    bars = [line for line in lines if " loss " in line and "%" in line]
    assert bars == lines[-1:]
    for part in ("100%", "step 20", "loss 0.05", "best auc 0.7 at 20", "1,234 samples/s"):
        assert part in bars[0]
    above = "\n".join(lines[:-1])
    for line in ("a library is worried", "a stray line", "eval  step 10", "eval  step 20"):
        assert above.count(line) == 1
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 22


@pytest.mark.parametrize("columns", [1, 8, 20, 40, 80, 240])
def test_the_bar_is_one_line_at_any_width(tmp_path, columns):
    code, _, sent = on_terminal(tmp_path, columns=columns)
    lines, _ = shown(sent, rows=200, columns=columns)
    assert code == 0
    assert sum("100%" in line for line in lines) == (columns >= 8)
    if columns >= 20:
        assert "step 20" in lines[-1]
    if columns == 240:
        assert "MFU 23.1%" in lines[-1]
        assert "of 8.0 GiB" in lines[-1]


def test_training_goes_on_when_its_terminal_is_closed(tmp_path):
    code, out, _ = on_terminal(tmp_path, "hang up")
    assert (code, out) == (0, "bar\ntrained\n")
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 22


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path):
    code, out, sent = on_terminal(tmp_path, TERM="dumb")
    assert (code, out) == (0, "no bar\ntrained\n")
    assert b"\x1b" not in sent
    assert b"eval  step 10" in sent


def test_without_a_terminal_there_are_lines_and_no_control_characters(tmp_path):
    done = subprocess.run([sys.executable, "-c", STEPS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "no bar\ntrained\n"
    assert "\x1b" not in done.stderr
    assert "loss" not in done.stderr  # single steps wait for half a minute
    assert "eval  step 10" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_a_run_of_the_command_line_needs_no_stderr(tmp_path, closed):
    rows = "".join(f"{at * at % 17},{'yes' if at % 3 else 'no'}\n" for at in range(60))
    (tmp_path / "t.csv").write_text(f"x,y\n{rows}")
    train = f"{sys.executable} -m zoo.cli train tabular/xgboost --data t.csv --target y --set train.rounds=5 --out r"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        f"{train} {closed}", shell=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "r" / "complete.json").exists()
    assert done.stdout.splitlines()[-1] == "r"
    assert "baseline:" not in done.stdout  # what belongs on stderr never comes on stdout


def test_words_that_do_not_fit_are_left_out_and_a_shorter_one_takes_their_place():
    said = ["  5%", "step 20", "a very long word", "left"]
    assert fitting(said, 100) == "  5%  step 20  a very long word  left"
    assert fitting(said, 20) == "  5%  step 20  left"
    assert fitting(said, 5) == "  5%"
    assert fitting(said, 0) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (200, "3:20"), (7499.6, "2:05:00")])
def test_durations_read_like_a_clock(seconds, text):
    assert clock(seconds) == text


def test_the_rest_of_the_budget_is_told_from_the_pace_and_anew_after_going_back():
    seen = Seen("auc")
    assert seen.seconds_left() is None
    for second in range(5):
        seen.take({"kind": "step", "step": second, "progress": second / 20}, 100.0 + second)
    assert seen.seconds_left() == pytest.approx(16.0)
    seen.take({"kind": "step", "step": 1, "progress": 0.05}, 105.0)
    assert seen.seconds_left() is None
    assert any("step 1" in word for word in words(seen, (2**30, 0)))


def test_encoding_shows_how_many_are_done():
    seen = Seen("auc")
    seen.take({"kind": "encoding", "done": 1200, "of": 4800, "seconds": 3.0}, 0.0)
    assert words(seen, (2**29, 2**31))[:2] == [" 25%", "encoding 1,200 of 4,800"]


def test_writing_to_a_closed_or_narrow_stream_is_given_up_in_silence():
    closed = StringIO()
    closed.close()
    assert not Unbreakable(closed).isatty()
    bar = Bar("auc", lambda: (0, 0), stream=closed)
    with bar:
        bar.update({"kind": "step", "step": 1, "loss": 0.5, "progress": 0.5})
