// SPDX-License-Identifier: Apache-2.0
// A dataset that was sent to workers, with the C++ functions that its bytes were traced from.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/function/frozen_tensor.h"
#include "cohort/function/tracing_mode.h"

namespace cohort::data {

// Keeps the functions alive, so that they can be traced for elements of other shapes while workers
// run the pipeline (ProgramSupply). Thread-safe.
class COHORT_API ShippedDataset {
 public:
  // For each op of the graph, the tensors that its functions' programs hold as constants.
  using Frozen = std::vector<std::vector<function::FrozenTensor>>;

  // How many bytes of elements it copies; it shares larger tensors with the dataset.
  static constexpr std::size_t kOwnBytesMax = std::size_t{1} << 20;

  ShippedDataset(Dataset dataset, GraphBytes bytes, Frozen frozen);

  // Throws failed_precondition if a tensor that it shares was written to since.
  Bytes bytes() const { return bytes_.joined(); }
  std::size_t own_bytes() const { return bytes_.own_bytes(); }
  bool has_same_bytes(const ShippedDataset& other) const { return bytes_.is_same(other.bytes_); }
  // The user's name of the function. data_loss if the bytes have no such function.
  std::string name_of(const std::string& function) const;
  // Whether a program of the function is one for the function of the same name in `other`: both are
  // one C++ object whose elements have one structure, as in the shards of one dataset. False if it
  // is not known, as inside a dataset function, which makes its functions again for each element.
  bool has_same(const std::string& function, const ShippedDataset& other) const;
  // Traces the function for elements with the specs of `element`, on this thread but in the tracing
  // modes of the thread that created this object. Throws the function's own error for this element
  // with the cause `application`. Every other error has the cause `closure_input`: the function
  // cannot be traced, or a tensor that it captures was modified since it was first traced.
  Bytes trace(const std::string& function, const Fields& element) const;

 private:
  using Nodes = std::vector<std::shared_ptr<const Node>>;
  const Nodes& nodes_of(const std::string& function) const COHORT_REQUIRES(mutex_);
  // The op that has the function, where that is one of the graph itself; else null.
  std::shared_ptr<const Node> op_of(const std::string& function) const;
  Bytes trace_alike(const Nodes& nodes, const Fields& element) const;
  void check_current(const std::string& function) const COHORT_REQUIRES(mutex_);

  const Dataset dataset_;
  const GraphBytes bytes_;
  const function::TracingMode mode_;
  mutable Mutex mutex_;  // held while a function is traced
  mutable Frozen frozen_ COHORT_GUARDED_BY(mutex_);
  // The op of each function. For a function inside a dataset function, that op in several graphs,
  // made for different elements.
  mutable std::map<std::string, Nodes> nodes_ COHORT_GUARDED_BY(mutex_);
};

// Serializes one dataset per worker. If functions have state that the bytes do not contain
// (ExternalStatePolicy), it warns once for all datasets and ignores their own policy, as all
// distribution does (spec 1.3).
COHORT_API std::vector<std::shared_ptr<const ShippedDataset>> ship_to_workers(
    const std::vector<Dataset>& datasets);

}  // namespace cohort::data
