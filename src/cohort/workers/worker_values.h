// SPDX-License-Identifier: Apache-2.0
// The values that the replicas contribute to a reduction or a concatenation, and its exchange
// between workers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/nest.h"
#include "cohort/input/per_replica.h"
#include "cohort/replicas/reduction.h"

namespace cohort::internal {

class StrategyWorkers;

// For each leaf of a value, what each replica contributes, in the order of the replicas. A
// concatenation uses only the `value` of each part, which may be strings.
using Contributions = std::vector<std::vector<Reduction::Parts>>;

// Returns the contributions of all workers, which make the same request: the call with its
// arguments, and the structure of the value. With one worker returns `own()`. An error of `own` on
// one worker is thrown on all, since the others already wait for that worker. Throws
// invalid_argument if the requests differ. `call` is the name of the method, for messages; without
// a timeout, that of the strategy counts. `workers`: nullptr for a strategy without any.
Contributions of_all_workers(StrategyWorkers* workers, std::string_view call,
                             const std::function<std::string()>& request_of,
                             const std::function<Contributions()>& own,
                             std::optional<Duration> timeout = {});

// Returns the tensors of worker `from` on all workers, which make the same request. Throws as
// above, and invalid_argument for a number that is no worker's.
std::vector<at::Tensor> of_one_worker(StrategyWorkers& workers, int from, std::string_view call,
                                      const std::function<std::string()>& request_of,
                                      const std::function<std::vector<at::Tensor>()>& own);
// Throws invalid_argument unless worker `from` is one of `count`.
void check_worker(int from, int count, std::string_view call);

// Concatenates along `axis`. Throws invalid_argument unless the parts have the axis, one dtype and
// rank, and one size in each other dimension; unimplemented for sparse parts, and for strings and
// another axis than 0.
at::Tensor concatenated(const std::vector<Reduction::Parts>& parts, std::int64_t axis,
                        std::string_view call);
// Throws unimplemented.
void check_is_dense(const at::Tensor& tensor, std::string_view call);

// A leaf as a tensor; a host number as a scalar, int64 or float32. Throws invalid_argument for any
// other.
at::Tensor tensor_of(const Nest& leaf, std::string_view call);
// The structure of `like` with these leaves.
Nest packed(const Nest& like, std::vector<Nest> leaves);
PerReplica<Nest> as_nests(const PerReplica<at::Tensor>& value);

}  // namespace cohort::internal
