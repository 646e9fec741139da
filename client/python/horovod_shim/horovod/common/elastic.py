"""Elastic training without a framework."""

from maypole.common.elastic import ObjectState, State, run_fn
