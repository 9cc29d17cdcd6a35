"""The plan of an elastic task, in an imagined world: scripts, and random walks with invariants."""

from __future__ import annotations

import pytest

from client_plugin.elastic.orders import (
    Accept,
    Died,
    Done,
    EndAsked,
    GpuRecalled,
    NoRoom,
    Quit,
    Report,
    Resized,
    Saved,
    TaskLost,
)
from tests.elastic.imagined import GPUS, World
from tests.support.examples import seeds


def members(world: World) -> set[str]:
    return {gpu for _, gpu in world.sent[max(world.sent)].members}


def trains(world: World) -> bool:
    before = world.steps
    world.run(1.0)
    return world.steps > before


def trained(gpus: int = 2) -> World:
    """A world whose first workers train."""
    world = World(1, gpus)
    world.run(10.0)
    assert world.steps > 0
    assert members(world) == set(GPUS[:gpus])
    return world


def disturb(world: World) -> None:
    """One random thing that happens to the lease or to a worker."""
    choice = world.random.random()
    kept = [gpu for gpu, deadline in world.lease.items() if deadline is None]
    asked = [gpu for gpu, deadline in world.lease.items() if deadline is not None]
    free = [gpu for gpu in GPUS if gpu not in world.lease]
    alive = list(world.workers.values())
    if choice < 0.25 and free:
        world.offer(world.random.choice(free))
    elif choice < 0.5 and len(kept) > 1:
        world.recall(world.random.choice(kept))
    elif choice < 0.6 and asked:
        world.withdraw(world.random.choice(asked))
    elif choice < 0.8 and sum(worker.steps is not None for worker in alive) > 1:
        world.kill(world.random.choice(alive).number)
    elif choice < 0.82:
        world.rejoin()
    elif choice < 0.85 and sum(world.has_state(worker) for worker in alive) > 1:
        failed = world.random.choice([each for each in alive if world.has_state(each)])
        world.fail(failed.number)
        if failed.number in world.workers:
            world.kill(failed.number, 1)
    elif choice < 0.9 and len(alive) > 2:
        world.random.choice(alive).stuck = True


def happen(world: World, least: float = 0.0) -> None:
    """One random thing. `least` 0.05: nothing is disturbed."""
    choice = world.random.uniform(least, 1.0)
    if choice < 0.05:
        disturb(world)
    elif choice < 0.3:
        world.step()
    elif choice < 0.4 and world.ends:
        world.tell_end()
    elif choice < 0.5 and world.words:
        world.hear(world.random.choice(world.words)[0])
    elif choice < 0.55:
        world.pass_time(world.random.uniform(0.0, 0.5))
    elif world.workers:
        world.move(world.random.choice(list(world.workers.values())))


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_random_walk_keeps_what_was_promised(seed: int) -> None:
    """The promises are asserted in the imagined world; at its end, training goes on."""
    world = World(seed, gpus=1 + seed % 4, breaks=seed % 3 > 0, late=seed % 2 > 0)
    for _ in range(300):
        happen(world)
        if world.end is not None:
            break
    if world.end is None:
        for worker in [worker for worker in world.workers.values() if worker.stuck]:
            world.kill(worker.number)
        world.run(30.0)
    if world.end is not None:
        assert not world.plan.generations.members or world.end != 0
        return
    assert trains(world)
    assert all(deadline is None for deadline in world.lease.values())
    closed = {gpu for gpu, seat in world.plan.roster.seats.items() if seat.closed}
    assert members(world) == set(world.lease) - closed


def quit_one(world: World) -> None:
    """`break` in the loop of one worker; the others train on."""
    stepping = [each for each in world.workers.values() if world.has_state(each)]
    if len(stepping) > 1:
        worker = world.random.choice(stepping)
        world.leave_loop(worker, Quit(worker.number, 1))


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_training_that_ends_at_any_instant_ends_the_task(seed: int) -> None:
    """Joiners whose generation came too late wait for nobody, and no peer waits for the ended."""
    world = World(seed, gpus=1 + seed % 4, breaks=seed % 3 > 0, late=seed % 2 > 0)
    for _ in range(world.random.randint(60, 200)):
        happen(world)
    for worker in [each for each in world.workers.values() if each.stuck]:
        world.kill(worker.number)
    if seed % 4 == 0:
        quit_one(world)
    until_s = world.now_s + 60.0
    while world.end is None and not world.end_training() and world.now_s < until_s:
        happen(world, 0.05)
    for _ in range(world.random.randint(0, 60)):
        happen(world, 0.05)
    for _ in range(3):  # those that an urgent word has interrupted end after the others
        for worker in [each for each in world.workers.values() if each.stage == "finished"]:
            world.kill(worker.number, 0)
        world.run(2.0)
        world.end_training()
    assert world.end is not None, world.log[-30:]


def test_an_offered_gpu_trains_and_no_step_is_lost() -> None:
    world = trained(1)
    world.offer(GPUS[3])
    assert trains(world)
    world.run(8.0)
    assert members(world) == {GPUS[0], GPUS[3]}
    assert Accept(GPUS[3]) in world.log


def test_a_recalled_gpu_is_left_at_a_step_boundary() -> None:
    world = trained(3)
    world.recall(GPUS[2])
    world.run(1.0)
    assert GPUS[2] not in world.lease
    assert not world.sent[max(world.sent)].now
    assert trains(world)


def test_a_spare_waits_and_takes_the_next_gpu_at_once() -> None:
    world = trained(1)
    (spare,) = world.on("")
    assert spare.stage == "parked"
    world.offer(GPUS[1])
    assert trains(world)
    assert members(world) == set(GPUS[:2])
    assert world.on(GPUS[1]) == [spare]
    world.run(10.0)
    assert world.on("") != [spare]
    assert world.on("")


def test_a_spare_that_is_not_parked_yet_is_given_its_gpu_then() -> None:
    world = trained(1)
    world.kill(world.on("")[0].number)
    world.tell_ends()
    world.run(0.1)
    (spare,) = world.on("")
    spare.ready_s = world.now_s + 3.0
    world.offer(GPUS[1])
    world.recall(GPUS[1])
    world.run(0.1)
    assert set(world.lease) == {GPUS[0]}
    assert trains(world)


def test_spares_that_end_are_no_fault_and_are_not_started_for_ever() -> None:
    world = trained(1)
    for _ in range(3):
        world.run(10.0)
        world.kill(world.on("")[0].number, 1)
        world.tell_ends()
    world.run(60.0)
    assert not world.on("")
    assert not [each for each in world.log if isinstance(each, Report) and each.key == "ENDED"]
    assert trains(world)


def test_a_host_without_room_gets_no_spare() -> None:
    world = trained(1)
    (spare,) = world.on("")
    del world.workers[spare.number]
    world.happen(NoRoom(spare.number))
    world.run(50.0)
    assert not world.on("")
    world.run(20.0)
    assert world.on("")


def test_a_task_with_all_of_its_gpus_has_no_spare() -> None:
    world = trained(len(GPUS))
    world.run(20.0)
    assert not world.on("")


def test_the_only_state_is_handed_on_before_its_gpu_is_left() -> None:
    world = trained(1)
    world.offer(GPUS[1])
    world.recall(GPUS[0])
    world.run(9.0)
    assert members(world) == {GPUS[1]}
    assert set(world.lease) == {GPUS[1]}
    assert trains(world)


def test_another_gpu_is_left_where_the_only_state_has_no_successor_in_time() -> None:
    world = trained(2)
    world.kill(world.on(GPUS[1])[0].number)
    world.tell_ends()
    for spare in world.on(""):
        world.kill(spare.number)
    world.tell_ends()
    (successor,) = world.on(GPUS[1])
    successor.stage, successor.ready_s = "starting", world.now_s + 60.0
    world.recall(GPUS[0])
    world.run(9.5)
    assert set(world.lease) == {GPUS[0]}
    assert world.lease[GPUS[0]] is None, "the manager has withdrawn its recall"
    assert trains(world)


def test_a_worker_that_reaches_no_boundary_is_killed_before_the_deadline() -> None:
    world = trained(2)
    late = world.on(GPUS[1])[0]
    late.stuck = True
    world.recall(GPUS[1])
    world.run(9.0)
    assert world.on(GPUS[1])
    world.run(1.0)
    assert set(world.lease) == {GPUS[0]}
    assert trains(world)


def test_a_recall_during_a_join_ends_the_joiner_alone() -> None:
    world = trained(1)
    world.offer(GPUS[1])
    world.recall(GPUS[1])
    world.tell_ends()
    assert set(world.lease) == {GPUS[0]}
    assert max(world.sent) == 1
    assert trains(world)


def test_a_withdrawn_recall_gives_the_gpu_a_fresh_worker() -> None:
    world = trained(2)
    world.recall(GPUS[1])
    world.withdraw(GPUS[1])
    world.run(10.0)
    assert members(world) == {GPUS[0], GPUS[1]}
    assert trains(world)


def test_a_joiner_that_dies_beside_a_member_that_has_formed_unheard_ends_its_wait() -> None:
    """As with NCCL, the wait of that member does not end by the death."""
    world = trained(1)
    world.breaks, world.late = False, True
    world.offer(GPUS[1])
    spare, member = world.on(GPUS[1])[0], world.on(GPUS[0])[0]
    while not world.words or world.words[-1] != (member.number, Resized(member.number, 2)):
        for worker in (spare, member):
            world.move(worker)
        for number, word in list(world.words):
            if not isinstance(word, Resized):
                world.hear(number)
        world.step()
    world.words = [each for each in world.words if each[0] == member.number]
    world.kill(spare.number)
    world.tell_ends()
    assert world.sent[max(world.sent)].now
    assert trains(world)


def test_a_killed_worker_is_replaced_and_the_others_do_not_wait() -> None:
    world = trained(3)
    killed = world.on(GPUS[0])[0]
    world.kill(killed.number)
    world.tell_ends()
    assert world.sent[max(world.sent)].now
    assert members(world) == set(GPUS[1:3])
    assert trains(world)
    world.run(8.0)
    assert members(world) == set(GPUS[:3])


def test_a_gpu_whose_workers_end_thrice_in_a_row_stays_empty() -> None:
    world = trained(1)
    world.offer(GPUS[1])
    for _ in range(3):
        world.kill(world.on(GPUS[1])[0].number, 1)
        world.tell_ends()
    assert not world.on(GPUS[1])
    assert GPUS[1] in world.declined
    assert trains(world)


def test_a_gpu_of_the_start_on_which_no_worker_trains_is_given_back() -> None:
    """A recall would take the GPU of the only worker with the state instead."""
    world = trained(2)
    for _ in range(4):
        worker = world.plan.roster.on(GPUS[1])
        assert worker is not None
        world.kill(worker.number)
        world.tell_ends()
    assert set(world.lease) == {GPUS[0]}
    assert [each.gpu for each in world.log if isinstance(each, Report) and each.key == "GIVEN_BACK"
            ] == [GPUS[1]]  # fmt: skip
    assert trains(world)


def test_a_script_that_fails_in_each_worker_ends_with_its_code() -> None:
    world = trained(2)
    for gpu in GPUS[:2]:
        world.kill(world.on(gpu)[0].number, 3)
    world.tell_ends()
    world.run(1.0)
    assert world.end == 3


def test_an_exception_is_known_before_its_process_ends() -> None:
    """It may never end: the program can catch the exception and go on."""
    world = trained(3)
    failed = world.on(GPUS[0])[0]
    world.fail(failed.number)
    assert world.sent[max(world.sent)].now
    assert members(world) == set(GPUS[1:3])
    assert trains(world)
    generations = max(world.sent)
    world.kill(failed.number, 1)
    world.tell_ends()
    assert max(world.sent) == generations, "the end of the process breaks nothing more"
    world.run(8.0)
    assert members(world) == set(GPUS[:3])


def test_an_exception_of_the_only_worker_leaves_it_the_time_to_end() -> None:
    world = trained(1)
    world.offer(GPUS[1])
    failed = world.on(GPUS[0])[0]
    world.fail(failed.number)
    world.run(8.0)
    assert world.end is None
    assert members(world) == {GPUS[0]}, "a worker without the state begins at step 0"
    world.kill(failed.number, 3)
    world.tell_ends()
    world.run(1.0)
    assert world.end == 3


def test_three_workers_that_fail_at_one_step_end_the_task() -> None:
    """A sample that none can load; the others would be started again for ever."""
    world = trained(5)
    for gpu in GPUS[:3]:
        failed = world.on(gpu)[0]
        world.fail(failed.number)
        world.kill(failed.number, 7)
        world.tell_ends()
    world.run(1.0)
    assert world.end == 7
    assert [each.key for each in world.log if isinstance(each, Report)][-1] == "SAME_STEP"


def test_a_gpu_whose_workers_fail_in_their_first_step_thrice_is_given_back() -> None:
    """Steps of the others lie between the failures, so that the task goes on."""
    world = trained(2)
    for _ in range(3):
        failed = world.on(GPUS[1])[0]
        world.fail(failed.number, own=1)
        world.kill(failed.number, 7)
        world.tell_ends()
        world.run(10.0)
    assert set(world.lease) == {GPUS[0]}
    assert trains(world)


def test_failures_with_steps_between_them_end_nothing() -> None:
    world = trained(3)
    for _ in range(5):
        failed = world.on(GPUS[0])[0]
        world.fail(failed.number)
        world.kill(failed.number, 7)
        world.tell_ends()
        world.run(8.0)
        assert members(world) == set(GPUS[:3])


def test_workers_that_have_finished_end_the_task() -> None:
    world = trained(2)
    world.finish_training()
    world.tell_ends()
    assert world.end == 0


def test_a_joiner_whose_generation_comes_after_the_last_step_is_ended_at_once() -> None:
    """The others' processes may go on for long, and none of them would form it."""
    world = trained(1)
    (ended,) = world.on(GPUS[0])
    world.offer(GPUS[3])
    while len(world.sent[max(world.sent)].members) == 1:
        world.pass_time(0.1)
        world.move(world.on(GPUS[3])[0])
    world.leave_loop(ended, Done(ended.number, 1))
    assert world.on(GPUS[3]) == []
    world.tell_ends()
    world.kill(ended.number, 0)
    world.tell_ends()
    assert world.end == 0


def test_a_break_ends_the_wait_of_the_others_in_its_collective() -> None:
    """NCCL's collectives do not break by themselves."""
    world = World(1, 2, breaks=False)
    world.run(10.0)
    (left,) = world.on(GPUS[0])
    world.leave_loop(left, Quit(left.number, 1))
    assert trains(world)
    assert members(world) == {GPUS[1]}


def lose_state(world: World) -> None:
    """SIGKILL of every worker that has it; the steps of this world are those of a checkpoint."""
    world.steps = 0
    for worker in [each for each in world.workers.values() if world.has_state(each)]:
        world.kill(worker.number)
    world.tell_ends()


def test_a_lost_state_is_read_from_its_checkpoint() -> None:
    world = trained(2)
    world.happen(Saved(0, 5))
    lose_state(world)
    world.run(10.0)
    assert world.end is None
    assert trains(world)
    assert members(world) == set(GPUS[:2])
    assert [each.key for each in world.log if isinstance(each, Report)].count("RESUMED") == 1


def test_a_joiner_goes_on_from_the_checkpoint_of_a_lost_state() -> None:
    """It waits for the lost worker in a generation that is never formed."""
    world = trained(1)
    world.happen(Saved(0, 5))
    world.offer(GPUS[3])
    while len(world.sent[max(world.sent)].members) == 1:
        world.pass_time(0.1)
        world.move(world.on(GPUS[3])[0])
    (joiner,) = world.on(GPUS[3])
    lose_state(world)
    assert trains(world)
    assert world.on(GPUS[3]) == [joiner]
    world.run(10.0)
    assert members(world) == {GPUS[0], GPUS[3]}


def test_a_state_that_is_lost_again_and_again_ends_the_task() -> None:
    """At most three times in a row without a newer checkpoint; without one at all, at once."""
    world = trained(1)
    for saved in (5, 5, 6, 6, 6):
        world.happen(Saved(world.on(GPUS[0])[0].number, saved))
        lose_state(world)
        world.run(10.0)
        assert world.end is None
    lose_state(world)
    assert world.end == -9
    world = trained(1)
    lose_state(world)
    assert world.end == -9


def test_no_worker_starts_once_the_training_is_over() -> None:
    world = trained(2)
    for worker in world.workers.values():
        worker.stuck = True
    world.stepped_in = 0
    numbers = set(world.numbers)
    for number in list(world.workers):
        world.happen(Done(number, 1))
    world.offer(GPUS[4])
    assert world.numbers == numbers
    assert GPUS[4] in world.declined


def test_an_interrupt_ends_all_and_a_second_one_at_once() -> None:
    world = trained(2)
    pids = list(world.workers)
    world.happen(EndAsked(2, 1.0))
    assert not world.workers
    world.tell_ends()
    assert world.end == -2
    assert pids == [0, 1, 2], "two workers and a spare"


def test_a_lost_lease_ends_the_task() -> None:
    world = trained(2)
    world.happen(TaskLost())
    world.tell_ends()
    assert world.end == 1


def test_words_about_unknown_gpus_and_workers_change_nothing() -> None:
    world = trained(1)
    world.happen(GpuRecalled("GPU-unknown", world.now_s))
    world.happen(Died(99, -9))
    assert set(world.lease) == {GPUS[0]}
    assert trains(world)
