"""with_kill_points: programs and tests built with --//common:kill_points."""

def _on_impl(_settings, _attr):
    return {"//common:kill_points": True}

_on = transition(
    implementation = _on_impl,
    inputs = [],
    outputs = ["//common:kill_points"],
)

def _impl(ctx):
    program = ctx.attr.program[0][DefaultInfo].files_to_run.executable
    copy = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = copy, target_file = program, is_executable = True)
    return [DefaultInfo(executable = copy, runfiles = ctx.runfiles(files = [program]))]

_attrs = {
    "program": attr.label(cfg = _on, executable = True, mandatory = True),
    "_allowlist_function_transition": attr.label(
        default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
    ),
}

with_kill_points = rule(
    implementation = _impl,
    attrs = _attrs,
    executable = True,
)

# The same for a test program.
with_kill_points_test = rule(
    implementation = _impl,
    attrs = _attrs,
    test = True,
)
