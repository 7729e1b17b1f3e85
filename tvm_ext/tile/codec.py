"""Plans as JSON: the form they have in logs, artifacts and reports."""

from __future__ import annotations

import msgspec

from tvm_ext.errors import PlanError
from tvm_ext.tile.plan import TilePlan

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TilePlan)


def encode_plan(plan: TilePlan) -> str:
    """The plan as one line of JSON; `decode_plan` gives the equal plan back."""
    return _ENCODER.encode(plan).decode()


def decode_plan(text: str | bytes) -> TilePlan:
    """The plan written by `encode_plan`. Raises PlanError if the text is not one."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanError("decode", f"plan: {error}; expected the JSON of a TilePlan") from error
