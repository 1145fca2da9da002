"""Timeline of a job as SVG: one lane for each state, one step for each change of state, with the
time spent in each state.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup

from .render import clean_text, format_duration

if TYPE_CHECKING:
    from millrace.records import EventRecord

#: Lanes from top to bottom. Only states that the job has had are drawn.
LANES: Final = ("scheduled", "blocked", "ready", "leased", "done", "dead", "gone")
#: Maximum number of steps, including the first FIRST steps. The list of events is complete.
MAX_STEPS: Final = 24
FIRST: Final = 3

_LEFT: Final = 96
_STEP: Final = 150
_LANE: Final = 56
_TOP: Final = 34


class TimelineStep(NamedTuple):
    state: str
    at: int
    why: str
    about: str


def draw(events: "Sequence[EventRecord]", now: int) -> Markup:
    """Return the timeline as SVG, or empty markup if no step can be drawn."""
    steps = [
        TimelineStep(event.state, event.time, event.type, _about(event))
        for event in events
        if event.type != "renewed" and event.state in LANES
    ]
    if not steps:
        return Markup()
    left_out = max(0, len(steps) - MAX_STEPS)
    first, rest = (steps[:FIRST], steps[-(MAX_STEPS - FIRST) :]) if left_out else (steps, [])
    lanes = [state for state in LANES if any(step.state == state for step in first + rest)]
    parts = [_lanes(lanes, len(first) + len(rest) + bool(left_out))]
    parts += _path(first, lanes, 0, rest[0].at if rest else now, is_last=not rest)
    if left_out:
        x = _x(len(first))
        told = f"{left_out:,} more"
        parts.append(Markup('<text class="gap" x="{}" y="{}">{}</text>').format(x + 8, 20, told))
        parts += _path(rest, lanes, len(first) + 1, now, is_last=True)
    width = _x(len(first) + len(rest) + bool(left_out)) + 24
    height = _y(len(lanes) - 1) + 32
    return Markup(
        '<svg class="timeline" viewBox="0 0 {} {}" width="{}" height="{}" role="img"'
        ' aria-label="Timeline of the job; the list of events has the same data">'
        "{}</svg>"
    ).format(width, height, width, height, Markup().join(parts))


def _lanes(lanes: list[str], steps: int) -> Markup:
    return Markup().join(
        Markup(
            '<text class="lane {}" x="0" y="{}">{}</text><path class="lane" d="M{} {}H{}"/>'
        ).format(state, y + 5, _label(state), _LEFT - 8, y, _x(steps) + 16)
        for place, state in enumerate(lanes)
        for y in (_y(place),)
    )


def _label(state: str) -> str:
    return "removed" if state == "gone" else state


def _path(
    steps: list[TimelineStep], lanes: list[str], begin: int, until: int, *, is_last: bool
) -> list[Markup]:
    parts = []
    for place, step in enumerate(steps):
        x, y = _x(begin + place), _y(lanes.index(step.state))
        before = steps[place - 1] if place else None
        if before is not None:
            parts.append(_arrow(x, _y(lanes.index(before.state)), y, step))
        open_ = place == len(steps) - 1
        if step.state in {"done", "dead", "gone"} and open_:
            parts.append(_mark(x, y, step, first=before is None))
            end_ = Markup('<text class="span" x="{}" y="{}">{}</text>')
            parts.append(end_.format(x + 12, y + 4, _label(step.state)))
            continue
        end = until if open_ else steps[place + 1].at
        stays = open_ and is_last
        parts.append(_stay(x, y, step, max(0, end - step.at), now=stays))
        parts.append(_mark(x, y, step, first=before is None))
    return parts


def _stay(x: int, y: int, step: TimelineStep, long: int, *, now: bool) -> Markup:
    told = f"{step.state} {format_duration(long)}{' so far' if now else ''}"
    return Markup(
        '<path class="stay {}{}" d="M{} {}H{}"/><text class="span" x="{}" y="{}">{}</text>'
    ).format(step.state, " open" if now else "", x, y, x + _STEP, x + 12, y - 8, told)


def _arrow(x: int, above: int, y: int, step: TimelineStep) -> Markup:
    if above == y:
        return Markup('<text class="why" x="{}" y="{}">{}</text>').format(x + 6, y + 18, step.why)
    down = 1 if y > above else -1
    return Markup(
        '<path class="change" d="M{0} {1}V{2}"/><path class="head" d="M{3} {4}L{0} {5}L{6} {4}"/>'
        '<text class="why" x="{7}" y="{8}">{9}</text>'
    ).format(
        x,
        above,
        y - 7 * down,
        x - 4,
        y - 13 * down,
        y - 6 * down,
        x + 4,
        x + 6,
        above + (20 if down > 0 else -10),
        step.why,
    )


def _mark(x: int, y: int, step: TimelineStep, *, first: bool) -> Markup:
    made = Markup('<circle class="{}" cx="{}" cy="{}" r="6"><title>{}</title></circle>').format(
        step.state, x, y, step.about
    )
    if first:
        made += Markup('<text class="why" x="{}" y="{}">{}</text>').format(x + 6, y + 18, step.why)
    return made


def _about(event: "EventRecord") -> str:
    text = event.type
    if event.type == "leased" and event.worker:
        text += f" by {clean_text(event.worker, 80)}"
    if event.type == "moved" and event.source:
        text += f" from {clean_text(event.source, 80)} to {clean_text(event.queue, 80)}"
    if event.error_message or event.error_group:
        text += f": {clean_text(event.error_group or '', 80)} "
        text += clean_text(event.error_message or "", 160)
    return text


def _x(step: int) -> int:
    return _LEFT + 12 + step * _STEP


def _y(lane: int) -> int:
    return _TOP + lane * _LANE
