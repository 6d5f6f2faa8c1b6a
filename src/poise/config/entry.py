"""Reads one replica that is named while the gateway runs, in the words of the configuration file."""

from pydantic import ValidationError

from poise.config.problems import raise_problems, validation_problems
from poise.config.replica_section import ReplicaSection


def read_replica(entry: object) -> ReplicaSection:
    """`entry`, as an item of `replicas` would be read. Raises `ConfigError` that says everything that is wrong."""
    try:
        return ReplicaSection.model_validate(entry)
    except ValidationError as error:
        raise_problems(validation_problems(error, lambda path: "", ReplicaSection))
        raise  # there always is a problem
