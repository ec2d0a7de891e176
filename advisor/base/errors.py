"""The one exception that a user's mistake raises."""


class UserError(ValueError):
    """A request that cannot be answered: one line says the field, its value and what is right.

    Args:
        field: path of the field or flag, e.g. ``layout.tensor_model_parallel_size``.
        value: what the user gave.
        relation: the relation that does not hold, in words.
        nearest: legal values near the given one, or what to write instead.
    """

    def __init__(self, field: str, value: object, relation: str, nearest: str = "") -> None:
        hint = f"; {nearest}" if nearest else ""
        super().__init__(f"{field} = {value}: {relation}{hint}")
        self.field = field
        self.value = value
        self.relation = relation
        self.nearest = nearest
