"""A batch of rollouts as it was generated: all that verifiers tells of it, to be taken apart and put together."""

from collections.abc import Sequence
from typing import Any

from verifiers.trainers.async_batch_generator import BatchResult


class GeneratedBatch(BatchResult):
    """A batch with all that verifiers tells of its rollouts."""

    outputs: Any = None
    """`GenerateOutputs`."""

    def rows(self, rows: Sequence[int]) -> "GeneratedBatch":
        """These rollouts of it."""

        def some(value: Any) -> Any:
            if isinstance(value, list):
                return [value[row] for row in rows]
            return {name: some(column) for name, column in value.items()} if isinstance(value, dict) else value

        def of(model: Any) -> Any:
            return model.model_copy(update={name: some(value) for name, value in dict(model).items()})

        parts = {"outputs": of(self.outputs), "processed_results": of(self.processed_results)}
        return of(self.model_copy(update=parts))

    @classmethod
    def joined(cls, batches: Sequence["GeneratedBatch"]) -> "GeneratedBatch":
        """One of the rollouts of all, in order; what is no rollout's is the first one's."""

        def together(first: Any, others: list[Any]) -> Any:
            if isinstance(first, list):
                return [each for value in [first, *others] for each in value]
            if isinstance(first, dict):
                return {name: together(value, [other[name] for other in others]) for name, value in first.items()}
            return first

        def join(models: Sequence[Any]) -> Any:
            values = [dict(model) for model in models]
            return models[0].model_copy(update=together(values[0], values[1:]))

        parts = {name: join([getattr(each, name) for each in batches]) for name in ("outputs", "processed_results")}
        joined: GeneratedBatch = join(batches).model_copy(update=parts)
        return joined
