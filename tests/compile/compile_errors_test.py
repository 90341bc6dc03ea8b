#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the compiler's messages for wrong code: the first error is one sentence that names the remedy.

    compile_errors_test.py --compile-commands FILE

Each case is compiled alone, with the command and so the precompiled header of options_test.cpp.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

INCLUDES = """
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/data/iterator.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
using namespace cohort;
void check(ClusterCoordinator& coordinator, OneDeviceStrategy& strategy, const Function& step,
           const PerReplica<at::Tensor>& values, const PerReplica<Nest>& elements, Iterator& it,
           const Dataset& data) {
  (void)coordinator, (void)strategy, (void)step, (void)values, (void)elements, (void)it, (void)data;
"""

Case = collections.namedtuple("Case", "name code sentence")

CASES = (
    Case("right code", """
  const Function typed([](float x, std::size_t n, const std::string&, Iterator&) noexcept {
    return x * static_cast<float>(n);
  });
  coordinator.schedule(typed, 1.0F, std::size_t{2}, "text", Nest());
  coordinator.run_epoch(step, data, 1.0F, at::Tensor());
  coordinator.run_epoch(step, data, {.on_step = [](const EpochStep&) {}}, std::size_t{2}, "text");
  coordinator.begin_epoch(step, data, Nest());
  strategy.run([](const at::Tensor& x, std::size_t n) { return x.dim() + std::int64_t(n); }, values, 2U);
  strategy.run([](auto x) { return x; }, values);
  strategy.run([](at::Tensor x, at::Tensor) { return x; }, elements);
  get_replica_context()->merge_call([](Strategy&) {});
  get_replica_context()->merge_call(
      [](Strategy& all, const PerReplica<at::Tensor>& x) { return all.reduce(ReduceOp::sum, x); }, at::Tensor());
  get_replica_context()->merge_call([](Strategy&, const auto& x, float) { return x; }, 2, 1.0F);
  const Variable v = local_variable("v", at::Tensor());
  strategy.extended().update(v, [](const Variable& part, const at::Tensor& x) { part.assign(x); }, values);
  strategy.extended().update(v, [](const auto& part, auto x) { return part.read().add(x); }, at::Tensor());
  strategy.extended().update_non_slot({"CPU:0"}, [](int x) { return x; }, 1);
""", None),
    Case("a parameter of another type", """
  const Function function([](const std::vector<float>& x) { return double{x[0]}; });
""", "a parameter is at::Tensor, double, float, an integer, bool, std::string, cohort::Nest or cohort::Iterator&"),
    Case("a result of another type", """
  struct Loss {};
  const Function function([](at::Tensor) { return Loss(); });
""", "the result is void, at::Tensor, a number, bool, std::string, cohort::Nest, or a tuple"),
    Case("a generic lambda", """
  const Function function([](auto x) { return x; });
""", "a generic lambda"),
    Case("an argument that is no nest", """
  coordinator.schedule(step, std::vector<at::Tensor>());
""", "put several tensors into Nest::list({a, b})"),
    Case("a pointer, which was taken for a bool", """
  coordinator.schedule(step, &strategy);
""", "ClusterCoordinator::schedule(), run_epoch() and begin_epoch() take at::Tensor, numbers, bool"),
    Case("an argument of an epoch that is no nest", """
  coordinator.run_epoch(step, data, std::vector<at::Tensor>());
""", "put several tensors into Nest::list({a, b})"),
    Case("a pointer as an argument of an epoch", """
  coordinator.run_epoch(step, data, {}, &strategy);
""", "ClusterCoordinator::schedule(), run_epoch() and begin_epoch() take at::Tensor, numbers, bool"),
    Case("run() with too few arguments", """
  strategy.run([](const at::Tensor& x, const at::Tensor& y) { return x.add(y); }, values);
""", "Strategy::run() needs one argument for each parameter of the function"),
    Case("run() with arguments of other types", """
  strategy.run([](const std::string& text) { return text.size(); }, values);
""", "Strategy::run() cannot call the function with these arguments"),
    Case("run() of a generic lambda with an element", """
  strategy.run([](auto x) { return x; }, elements);
""", "give them types (at::Tensor or cohort::Nest) in place of auto"),
    Case("merge_call() with too few arguments", """
  get_replica_context()->merge_call([](Strategy&, const PerReplica<int>& x) { return x.size(); });
""", "ReplicaContext::merge_call() needs a function of the strategy and one more parameter"),
    Case("merge_call() of a function without the strategy", """
  get_replica_context()->merge_call([](const at::Tensor& x) { return x.sum(); }, at::Tensor());
""", "ReplicaContext::merge_call() needs a function of the strategy and one more parameter"),
    Case("merge_call() with arguments of other types", """
  get_replica_context()->merge_call([](Strategy&, const PerReplica<Nest>& x) { return x.size(); }, at::Tensor());
""", "ReplicaContext::merge_call() cannot call the function: its first parameter is cohort::Strategy&"),
    Case("merge_call() of a generic lambda with too few arguments", """
  get_replica_context()->merge_call([](Strategy&, auto x) { return x.size(); });
""", "ReplicaContext::merge_call() cannot tell what a generic lambda takes"),
    Case("update() with too few arguments", """
  strategy.extended().update(local_variable("v", at::Tensor()), [](const Variable&, const at::Tensor&) {});
""", "StrategyExtended::update() needs a function of a variable and one more parameter for each argument"),
    Case("update_non_slot() with arguments of other types", """
  strategy.extended().update_non_slot({"CPU:0"}, [](const at::Tensor&) {}, 1);
""", "StrategyExtended::update_non_slot() needs a function with one parameter for each argument"),
    Case("an optimizer of torch::optim that needs a closure", """
  struct LBFGS {
    at::Tensor step(const std::function<at::Tensor()>& closure);
    std::vector<int> param_groups();
  };
  (void)sizeof(TorchOptimizer<LBFGS>);
""", "TorchOptimizer needs an optimizer of torch::optim whose step() needs no closure"),
    Case("a closure for an optimizer of torch::optim", """
  struct Adam {
    at::Tensor step();
    std::vector<int> param_groups();
  };
  const auto use = [](const TorchOptimizer<Adam>& optimizer) { optimizer.step([] { return at::Tensor(); }); };
  (void)use;
""", "TorchOptimizer::step() takes a function of the optimizer, not a closure that computes the loss"),
    Case("next() of another type", """
  it.next<double>();
""", "takes at::Tensor, once for each field of the element"),
)


def command_of(compile_commands, source):
    """The command that compiles a source, without the options that name its outputs."""
    entry = next(one for one in json.loads(compile_commands.read_text()) if one["file"].endswith(source))
    words = shlex.split(entry["command"])
    kept, skipped = [], {"-o", "-MT", "-MF", "-c"}
    for before, word in zip([""] + words, words):
        if word not in skipped and before not in skipped and word not in ("-MD", "-Werror"):
            kept.append(word)
    return kept + ["-fsyntax-only", "-fdiagnostics-color=never"], entry["directory"]


def finding(case, command, folder, scratch):
    """None, or a description of what is wrong with the compiler's messages."""
    source = pathlib.Path(scratch, case.name.replace(" ", "_").translate({ord(c): None for c in "(),"}) + ".cpp")
    source.write_text(INCLUDES + case.code + "}\n")
    done = subprocess.run([*command, str(source)], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "CCACHE_DISABLE": "1", "LC_ALL": "C.UTF-8"}, check=False)
    errors = [line for line in done.stderr.splitlines() if ": error: " in line or ": fatal error: " in line]
    if case.sentence is None:
        return "" if done.returncode == 0 else f"{case.name}: does not compile:\n{done.stderr}"
    if not errors:
        return f"{case.name}: expected an error, got none"
    if case.sentence not in errors[0]:
        return f"{case.name}: expected as the first error …{case.sentence}…, got\n{errors[0]}"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile-commands", type=pathlib.Path, required=True)
    command, folder = command_of(parser.parse_args().compile_commands, "tests/compile/options_test.cpp")
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(filter(None, pool.map(lambda case: finding(case, command, folder, scratch), CASES)))
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
