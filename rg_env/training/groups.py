"""How the rollouts of a step make groups. Imports neither torch nor verifiers."""

import math

from rg_env.errors import InputError

_GROUPS_TRIED = 4096


def check_groups(
    *, per_device: int, processes: int, accumulation: int, num_generations: int, batch: int | None = None
) -> None:
    """Raise `InputError` unless the rollouts of a step make whole groups of at least two.

    `batch`: how many rollouts are generated at once, where that is given by itself.
    """
    if num_generations < 2:
        raise InputError(f"num_generations={num_generations}: a group needs at least 2 rollouts to have an advantage")
    if per_device < 1 or accumulation < 1:
        raise InputError("per_device_train_batch_size and gradient_accumulation_steps must be at least 1")
    if batch is not None:
        for name, part in (
            ("num_generations", num_generations),
            ("the rollouts of a micro-batch", per_device * processes),
        ):
            if batch % part:
                raise InputError(f"generation_batch_size={batch} is no multiple of {name}={part}")
        return
    factor = processes * accumulation
    batch = per_device * factor
    if batch % num_generations == 0:
        return
    # Groups within reason: nobody wants larger ones, and looking through all that divide a huge number takes minutes.
    fitting = [n for n in range(2, min(batch, max(_GROUPS_TRIED, 2 * num_generations), 2**20) + 1) if batch % n == 0]
    groups = sorted(sorted(fitting, key=lambda n: abs(n - num_generations))[:3])
    part = num_generations // math.gcd(factor, num_generations)
    below = per_device // part * part
    sizes = [n for n in (below, below + part, below + 2 * part) if n > 0][:2]
    raise InputError(
        f"a step has {batch} rollouts ({per_device} per device x {processes} processes x {accumulation} accumulated), "
        f"which num_generations={num_generations} does not divide: nearest per_device_train_batch_size: "
        f"{', '.join(map(str, sizes))}" + (f"; or num_generations: {', '.join(map(str, groups))}" if groups else "")
    )
