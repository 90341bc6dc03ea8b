// SPDX-License-Identifier: Apache-2.0
// The programs that a shipped pipeline gets while it runs.
//
// A C++ function of map() or filter() is shipped as programs, each traced for elements of one
// shape. Where a running pipeline meets an element of another shape, the thread that has the
// element asks for a program and waits in its place, so that no element is lost, doubled or
// overtaken, wherever in the pipeline the function is.
//
//   auto supply = std::make_shared<ProgramSupply>(send_to_the_coordinator);
//   auto source = load_shipped(bytes, supply).source(options);
//   supply->start();
//   … supply->add(function, program);  // from another thread, when the answer comes
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

// Serves all functions of one pipeline. A function is named by the number of its op in the
// shipped graph, "3"; inside a dataset function by the number of its step, too: "4.0". Thread-safe.
class COHORT_API ProgramSupply {
 public:
  // Asks for a program of `function` for elements of the specs of `element`, and does not wait for
  // it. Called from the pipeline's threads, once for an element that waits. What it throws takes
  // the element's place.
  using Ask = std::function<void(const std::string& function, const Fields& element)>;

  explicit ProgramSupply(Ask ask);
  ~ProgramSupply();
  ProgramSupply(const ProgramSupply&) = delete;
  ProgramSupply& operator=(const ProgramSupply&) = delete;

  // Wakes the elements that the program takes. data_loss for bytes that are no such program.
  void add(const std::string& function, std::span<const std::byte> program);
  // There is no program for the element that asked: `error` takes its place. Others of its specs
  // ask again.
  void refuse(const std::string& function, const std::vector<TensorSpec>& element,
              const Error& error);
  // From here on it is asked: a pipeline that is being built does not wait.
  void start();
  // All who wait, and will, get `cancelled`.
  void end() noexcept;

  // Waits for it where it is not there yet; null before start(). `function_name`: for the error.
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
// The pipeline `graph` (Dataset::serialize()) with programs that were made later, as
// load_shipped() reads it (docs/formats/pipeline.md).
COHORT_API Bytes with_programs(const Bytes& graph, const std::vector<FunctionProgram>& programs);

// The pipeline of with_programs()' bytes, or serialize()'s, whose functions ask `supply` for
// programs that they lack, from supply->start() on. It may be started again, when the one before
// has gone: the programs stay. Throws data_loss for other bytes.
COHORT_API Dataset load_shipped(std::span<const std::byte> bytes,
                                const std::shared_ptr<ProgramSupply>& supply);

}  // namespace cohort::data
