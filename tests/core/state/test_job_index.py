"""The ids of jobs by environment, in order, and where a list of them goes on."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.model.job_ids import listed
from nodemgr.core.state.job_index import JobIndex
from tests.support.examples import examples


class Named(NamedTuple):
    job_id: str
    env: str


NAMES = st.builds(
    lambda number, index: f"j{number}" + ("" if index is None else f".{index}"),
    st.integers(1, 30),
    st.none() | st.integers(0, 3),
)
JOBS = st.dictionaries(NAMES, st.sampled_from("ab"), max_size=20)


@settings(deadline=None, max_examples=examples(100))
@given(JOBS, JOBS, st.data())
def test_it_has_what_came_and_not_what_went(
    first: dict[str, str], more: dict[str, str], data: st.DataObject
) -> None:
    index, there = JobIndex(), dict(first)
    index.change([Named(*row) for row in first.items()], [])
    gone = data.draw(st.lists(st.sampled_from(sorted(there)), unique=True)) if there else []
    came = {name: env for name, env in more.items() if name not in there}
    index.change([Named(*row) for row in came.items()], [Named(name, there[name]) for name in gone])
    there = {name: env for name, env in {**there, **came}.items() if name not in gone}
    assert len(index) == len(there)
    assert sorted(index) == sorted(there)
    for env in (None, "a", "b"):
        own = sorted((name for name in there if env in (None, there[name])), key=listed)
        assert list(index.behind(env)) == own
        for place, name in enumerate(own):
            assert list(index.behind(env, listed(name))) == own[place + 1 :]


def test_a_whole_array_stands_before_its_elements() -> None:
    assert sorted(["j2", "j1.10", "j1.9", "j1"], key=listed) == ["j1", "j1.9", "j1.10", "j2"]
