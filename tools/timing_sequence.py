"""A confirmation as it stands after some blocks: which tests are open, which answered, what the next block needs.

Pure and frozen: `Progress.after(...)` gives the next state. The deciding blocks end up here and nowhere else; the
ratios that are reported come from new blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kernelcrew.kernels.nouns import Shape, ShapeClass
from kernelcrew.record import Record
from kernelcrew.tools.estats import SHAPE_ALPHA, WIN, EProcess, beats, class_statistic, holds
from kernelcrew.tools.nouns import AlphaPlan, Answer

SHAPE_THRESHOLD = 1 / SHAPE_ALPHA
ClassState = Literal["open", "faster", "not faster", "unreached"]
"""unreached: neither, and the blocks that are left cannot change it."""


class ShapeTest(Record):
    """One shape against one baseline: shown not slower, shown slower, or neither yet."""

    margin: float
    """Loss that is forgiven, as a ratio minus 1."""
    held: EProcess = EProcess()
    """Evidence that it is not slower than the margin."""
    lost: EProcess = EProcess()
    """Evidence that it is."""
    answer: Answer = "unknown"
    """not slower or slower once either has reached 20; it stays."""

    def after(self, statistic: float | None) -> ShapeTest:
        """The test after a block; an answered test and a block without a statistic change nothing."""
        if statistic is None or self.answer != "unknown":
            return self
        kept = holds(statistic, self.margin)
        held, lost = self.held.after(kept), self.lost.after(not kept)
        answer: Answer = "unknown"
        if held.reached(SHAPE_THRESHOLD):
            answer = "not slower"
        elif lost.reached(SHAPE_THRESHOLD):
            answer = "slower"
        return self.model_copy(update={"held": held, "lost": lost, "answer": answer})


class ClassTest(Record):
    """One class against the incumbent."""

    margin: float
    """Gain that counts, as a ratio minus 1."""
    threshold: float
    """Evidence at which faster is accepted."""
    members: tuple[str, ...]
    """Keys of its timed shapes."""
    gain: EProcess = EProcess()
    """Evidence for faster."""
    state: ClassState = "open"
    """It stays once it is not open."""

    def after(self, statistic: float | None, blocks_left: int) -> ClassTest:
        """The test after a block, with so many blocks left at most."""
        if self.state != "open":
            return self
        gain = self.gain if statistic is None else self.gain.after(beats(statistic, self.margin))
        state: ClassState = "open"
        if gain.reached(self.threshold):
            state = "faster"
        elif gain.hopeless:
            state = "not faster"
        elif gain.out_of_reach(self.threshold, blocks_left):
            state = "unreached"
        return self.model_copy(update={"gain": gain, "state": state})


class Progress(Record):
    """All tests of one confirmation."""

    max_blocks: int
    """Deciding blocks at most."""
    blocks: int = 0
    """Deciding blocks so far."""
    classes: dict[ShapeClass, ClassTest]
    """By class."""
    shapes: dict[str, ShapeTest]
    """By shape, against the incumbent."""
    shapes_start: dict[str, ShapeTest]
    """By shape, against the run's first baseline; empty when that is the incumbent."""

    def after(self, logs: Mapping[str, float], logs_start: Mapping[str, float]) -> Progress:
        """The state after one block's median log ratios by shape."""
        left = self.max_blocks - self.blocks - 1
        return self.model_copy(
            update={
                "blocks": self.blocks + 1,
                "classes": {c: t.after(class_statistic(logs, t.members), left) for c, t in self.classes.items()},
                "shapes": {k: t.after(logs.get(k)) for k, t in self.shapes.items()},
                "shapes_start": {k: t.after(logs_start.get(k)) for k, t in self.shapes_start.items()},
            }
        )

    @property
    def faster(self) -> bool:
        return any(t.state == "faster" for t in self.classes.values())

    @property
    def slower(self) -> tuple[str, ...]:
        """Shapes shown slower than the incumbent or the start."""
        tests = [*self.shapes.items(), *self.shapes_start.items()]
        return tuple(dict.fromkeys(key for key, test in tests if test.answer == "slower"))

    @property
    def unproven(self) -> tuple[str, ...]:
        """Shapes that lack an answer."""
        tests = [*self.shapes.items(), *self.shapes_start.items()]
        return tuple(dict.fromkeys(key for key, test in tests if test.answer == "unknown"))

    @property
    def open_classes(self) -> tuple[ShapeClass, ...]:
        """Classes worth more blocks. Once a shape is slower, only those that win: a rule may still save them."""
        alive = [c for c, t in self.classes.items() if t.state == "open"]
        return tuple(c for c in alive if not self.slower or self.classes[c].gain.value >= 1)

    @property
    def unreached(self) -> tuple[ShapeClass, ...]:
        """Classes that the blocks did not suffice for."""
        return tuple(c for c, t in self.classes.items() if t.state in ("open", "unreached"))

    @property
    def over(self) -> bool:
        """Whether more blocks would change nothing that is decided on."""
        if self.blocks >= self.max_blocks:
            return True
        if self.open_classes:
            return False
        if self.slower or not self.unproven:
            return True
        return not self.faster and not self._nearly

    @property
    def decided(self) -> bool:
        """Whether an answer was reached: a slower shape, a faster class with every shape proven, or no class faster."""
        if self.slower:
            return not self.open_classes
        return not self.unproven if self.faster else not self.unreached

    @property
    def _nearly(self) -> bool:
        """Whether one more block may answer a shape: worth it even when no class is faster, for what it teaches."""
        tests = [t for t in (*self.shapes.values(), *self.shapes_start.values()) if t.answer == "unknown"]
        return any(max(t.held.value, t.lost.value) * WIN >= SHAPE_THRESHOLD for t in tests)

    def needs(self, shape: Shape) -> tuple[bool, bool]:
        """Whether the next block needs a shape at all, and whether it needs it against the start."""
        key = shape.key
        for_class = any(key in self.classes[c].members for c in self.open_classes)
        against_start = key in self.shapes_start and self.shapes_start[key].answer == "unknown"
        return for_class or self.shapes[key].answer == "unknown" or against_start, against_start

    def class_answer(self, shape_class: ShapeClass, answers: Mapping[str, Answer]) -> Answer:
        """faster if so accepted; else what the answers of its shapes say together."""
        test = self.classes[shape_class]
        if test.state == "faster":
            return "faster"
        found = {answers[key] for key in test.members}
        if "slower" in found:
            return "slower"
        return "not slower" if found == {"not slower"} else "unknown"


def begin(
    shapes: Sequence[Shape], plan: AlphaPlan, gain_margin: float, loss_margins: Mapping[str, float], *, with_start: bool
) -> Progress:
    """Fresh tests. Classes are tested on their timed shapes; held-out shapes only have to be not slower."""
    timed = [s for s in shapes if s.role != "held_out"]
    members: dict[ShapeClass, tuple[str, ...]] = {}
    for shape in timed:
        members[shape.shape_class] = (*members.get(shape.shape_class, ()), shape.key)
    tests = {s.key: ShapeTest(margin=loss_margins[s.key]) for s in shapes}
    return Progress(
        max_blocks=plan.max_blocks,
        classes={c: ClassTest(margin=gain_margin, threshold=plan.threshold, members=m) for c, m in members.items()},
        shapes=tests,
        shapes_start=tests if with_start else {},
    )
