// SPDX-License-Identifier: Apache-2.0
// What the replicas of a run have got, for the text of an error in one of them, and for a warning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/strategy/replica_call.h"

namespace cohort::internal {

// While it exists, errors of the run that this thread begins tell about its arguments. Used only
// from this thread.
class COHORT_API RunArguments {
 public:
  explicit RunArguments(std::size_t replicas);
  virtual ~RunArguments();
  RunArguments(const RunArguments&) = delete;
  RunArguments& operator=(const RunArguments&) = delete;

  // "replica 1 has 0 of 1 rows (float32[0, 8], int64[0])", and how to avoid few rows; empty if the
  // innermost run of this thread gives its replicas no tensors. `replica`: of this process;
  // `first`: the id of the first one.
  static std::string part_of(std::size_t replica, int first);
  // "running replica 1", and its part.
  static std::string text_of(std::size_t replica, int first);
  // To be called by each update that an optimizer makes in the innermost run of this thread. How
  // many replicas of this process have got the same rows, if this is the run's first update: no
  // argument is distributed, and a tensor has two rows or more. 0: this is no such update.
  static std::size_t replicas_at_first_update_with_plain_rows();

 protected:
  virtual void add_tensors(std::size_t replica, std::vector<at::Tensor>& tensors) const = 0;
  // Whether some argument gives each replica a value of its own.
  virtual bool is_distributed() const = 0;
  static void add(const at::Tensor& tensor, std::vector<at::Tensor>& tensors);
  static void add(const Nest& value, std::vector<at::Tensor>& tensors);

 private:
  RunArguments* const outer_;
  const std::size_t replicas_;
  bool has_update_ = false;
};

// Those of run().
template <class... A>
class ArgumentsOfRun final : public RunArguments {
 public:
  explicit ArgumentsOfRun(std::size_t replicas, A&... arguments)
      : RunArguments(replicas), arguments_(arguments...) {}

 private:
  void add_tensors(std::size_t replica, std::vector<at::Tensor>& tensors) const override {
    std::apply([&](auto&... each) { (add_component(component_of(each, replica), tensors), ...); },
               arguments_);
  }
  bool is_distributed() const override {
    return std::apply([](const auto&... each) { return (is_wrapped(each) || ...); }, arguments_);
  }
  template <class C>
  static void add_component(const C& component, std::vector<at::Tensor>& tensors) {
    if constexpr (std::is_same_v<C, at::Tensor> || std::is_same_v<C, Nest>) add(component, tensors);
  }
  template <class Argument>
  static bool is_wrapped(const Argument& argument) {
    if constexpr (kIsPerReplica<Argument>) return argument.is_wrapped();
    return false;
  }

  const std::tuple<A&...> arguments_;
};

}  // namespace cohort::internal
