"""The origins of each result of a traced function: its arguments, or a computation.

Transforms such as `nnx.remat`, `nnx.scan` and `nnx.jit` return new tracers for values that they do
not change. So the identity of a tracer does not show whether a value was changed, but the jaxpr
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameters of an equation that hold the function that it calls."""
MOVES = {
    **dict.fromkeys(
        (
            "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "dynamic_slice",
            "gather", "name", "pad", "pvary", "reduce_precision", "reshape", "reshard", "rev",
            "sharding_constraint", "slice", "split", "squeeze", "transpose",
        ),
        slice(0, 1),
    ),
    "concatenate": slice(None),
    "dynamic_update_slice": slice(0, 2),
    "scatter": slice(0, None, 2),
    "select_n": slice(1, None),
}  # fmt: skip
"""The operations that only move values or cast them, with their operands that hold values.

Several of them together may change nothing: a transform moves an axis of a variable to the front,
and back afterwards.
"""
ARITHMETIC = frozenset({
    "abs", "add", "add_any", "argmax", "argmin", "cbrt", "clamp", "conv_general_dilated", "cos",
    "cumsum", "div", "dot_general", "erf", "exp", "exp2", "expm1", "floor", "integer_pow", "log",
    "log1p", "logistic", "max", "min", "mul", "neg", "pow", "random_bits", "reduce_max",
    "reduce_min", "reduce_prod", "reduce_sum", "rem", "round", "rsqrt", "scatter-add",
    "scatter-mul", "scatter_add", "scatter_mul", "sign", "sin", "sort", "sqrt", "square", "sub",
    "tan", "tanh",
})  # fmt: skip
"""The operations that compute other values."""


class Elsewhere(StrEnum):
    """An origin that is no argument."""

    COMPUTED = "computed"
    """The value is computed, or comes from outside the function."""
    UNKNOWN = "unknown"
    """The value may be an argument, or not."""


Origins: TypeAlias = frozenset[int | Elsewhere]
"""The numbers of the arguments whose values a result has, moved or cast at most; or `Elsewhere`."""
COMPUTED: Origins = frozenset({Elsewhere.COMPUTED})
UNKNOWN: Origins = frozenset({Elsewhere.UNKNOWN})


def origins(closed: ClosedJaxpr) -> list[Origins]:
    """Return the origins of each result of a function, in their order."""
    walk = _Walk(closed.jaxpr, COMPUTED)
    return [walk.found(each) for each in closed.jaxpr.outvars]


def is_other(found: Origins, number: int) -> bool:
    """Return whether a result with these origins cannot be the argument of this number."""
    if Elsewhere.COMPUTED in found:
        return True
    return Elsewhere.UNKNOWN not in found and number not in found


class _Walk:
    """A walk through a jaxpr from its results back to its arguments."""

    def __init__(self, jaxpr: Jaxpr, constants: Origins) -> None:
        """Index the equations; `constants`: the origins of values from outside the function."""
        self._made = {out: (eqn, i) for eqn in jaxpr.eqns for i, out in enumerate(eqn.outvars)}
        self._found: dict[Any, Origins] = dict.fromkeys(jaxpr.constvars, constants)
        self._found |= {each: frozenset({i}) for i, each in enumerate(jaxpr.invars)}

    def found(self, value: Any) -> Origins:
        """Return the origins of a value of this jaxpr."""
        if isinstance(value, Literal):
            return COMPUTED
        if value not in self._found:
            eqn, number = self._made[value]
            self._found[value] = self._result(eqn, number)
        return self._found[value]

    def _result(self, eqn: Any, number: int) -> Origins:
        """Return the origins of a result of an equation."""
        name, given = eqn.primitive.name, eqn.invars
        if name == "scan":
            return self._of_scan(eqn, number)
        if name == "while":
            constants = eqn.params["body_nconsts"]
            inner, taken = eqn.params["body_jaxpr"], given[eqn.params["cond_nconsts"] :]
            return self._carried(_inside(inner, number), taken, constants + number)
        if name == "cond":
            return _union(
                self._outside(_inside(each, number), given[1:]) for each in eqn.params["branches"]
            )
        if name == "optimization_barrier":
            return self.found(given[number])
        if (called := _called(eqn)) is not None:
            return self._outside(_inside(called, number), given)
        if (values := MOVES.get(name)) is not None:
            return _union(self.found(each) for each in given[values])
        return COMPUTED if name in ARITHMETIC else UNKNOWN

    def _outside(self, found: Origins, given: Sequence[Any]) -> Origins:
        """Return the origins of a result of an inner function, which is called once."""
        return _union(
            frozenset({each}) if isinstance(each, Elsewhere) else self.found(given[each])
            for each in found
        )

    def _of_scan(self, eqn: Any, number: int) -> Origins:
        constants, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        found = _inside(eqn.params["jaxpr"], number)
        if number < carried:
            return self._carried(found, eqn.invars, constants + number)
        if found & {*range(constants, constants + carried)}:
            return self._carried(found, (), -1)
        return self._outside(found, eqn.invars)

    def _carried(self, found: Origins, given: Sequence[Any], own: int) -> Origins:
        """Return the origins of a carried value whose own argument is `own`."""
        if found == frozenset({own}):
            return self.found(given[own])
        return COMPUTED if Elsewhere.COMPUTED in found else UNKNOWN


def _inside(called: ClosedJaxpr | Jaxpr, number: int) -> Origins:
    """Return the origins of a result among the arguments of an inner function."""
    jaxpr = called.jaxpr if isinstance(called, ClosedJaxpr) else called
    return _Walk(jaxpr, UNKNOWN).found(jaxpr.outvars[number])


def _called(eqn: Any) -> ClosedJaxpr | Jaxpr | None:
    """Return the function that an equation calls with all its operands, once; None if none."""
    for key in CALLED:
        called = eqn.params.get(key)
        jaxpr = called.jaxpr if isinstance(called, ClosedJaxpr) else called
        if not isinstance(jaxpr, Jaxpr):
            continue
        if (len(jaxpr.invars), len(jaxpr.outvars)) == (len(eqn.invars), len(eqn.outvars)):
            return jaxpr
    return None


def _union(found: Iterable[Origins]) -> Origins:
    """Return all origins together."""
    return frozenset[int | Elsewhere]().union(*found)
