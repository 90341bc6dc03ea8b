// SPDX-License-Identifier: Apache-2.0
// Supplies a serialized pipeline with traced programs while it runs.
//
// A C++ function of map() or filter() is serialized as programs, each traced for elements of one
// shape. When a running pipeline meets an element of another shape, the thread that processes the
// element requests a program and blocks. So no element is lost, duplicated or reordered.
//
//   auto supply = std::make_shared<ProgramSupply>(send_to_the_coordinator);
//   auto source = load_shipped(bytes, supply).source(options);
//   supply->start();
//   supply->add(function, program);  // from another thread, when the answer comes
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/function/prepared_program.h"

namespace cohort::data {

// Serves all functions of one pipeline. A function's name is the number of its op in the serialized
// graph, "3"; inside a dataset function, the number of the op there follows: "4.0". Thread-safe.
class COHORT_API ProgramSupply {
 public:
  // Requests a program of `function` for elements with the specs of `element`, without waiting for
  // it. Called from the pipeline's threads; no two requests for one function and the same specs are
  // pending at a time. If it throws, the error replaces the element.
  using Ask = std::function<void(const std::string& function, const Fields& element)>;

  explicit ProgramSupply(Ask ask);
  ~ProgramSupply();
  ProgramSupply(const ProgramSupply&) = delete;
  ProgramSupply& operator=(const ProgramSupply&) = delete;

  // Adds a program and wakes the threads that wait for it. data_loss for bytes that are no program
  // of a dataset function.
  void add(const std::string& function, std::span<const std::byte> program);
  // Answers a request with an error, which replaces the element that requested the program. Other
  // waiting elements with the same specs request it again.
  void refuse(const std::string& function, const std::vector<TensorSpec>& element,
              const Error& error);
  // Enables requests. Before it, program_for() does not wait, so that a pipeline can be built.
  void start();
  // Every thread that waits for a program now or later throws `cancelled`.
  void end() noexcept;

  // The program for elements with the specs of `element`; requests it and waits if it is missing,
  // but returns null before start(). `function_name` is for error messages.
  std::shared_ptr<const function::PreparedProgram> program_for(const std::string& function,
                                                               const Fields& element,
                                                               const std::string& function_name);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// A program of one of a pipeline's functions.
struct FunctionProgram {
  std::string function;
  Bytes program;
};
// The bytes of Dataset::serialize() with programs that were traced later, for load_shipped()
// (docs/formats/pipeline.md).
COHORT_API Bytes with_programs(Bytes graph, const std::vector<FunctionProgram>& programs);

// Reads the bytes of with_programs() or Dataset::serialize(). The dataset's functions request
// missing programs from `supply` once supply->start() was called. The dataset may be run again
// after the previous run is destroyed; `supply` keeps the programs. data_loss for other bytes.
COHORT_API Dataset load_shipped(std::span<const std::byte> bytes,
                                const std::shared_ptr<ProgramSupply>& supply);

}  // namespace cohort::data
