// SPDX-License-Identifier: Apache-2.0
// One run of a gather op: which rows of each table some ids name, and what the op gives of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/function/prepared_program.h"

namespace cohort::function {

// Used only from the thread that runs the program.
class RowGather {
 public:
  // `arguments`: those of the op. Throws invalid_argument, which names the variable, for an id that
  // is no row.
  RowGather(std::span<const c10::IValue> arguments, const ProgramInfo& info);

  // Each row once: the padding, if there is one, then the others in ascending order.
  std::span<const internal::EffectHandler::RowRead> reads() const { return reads_; }
  // Variables that are read whole with them.
  const std::vector<std::int64_t>& variables() const { return variables_; }

  // For each table the rows, and their ids as int64 [m]: m is the number of the given ids, and one
  // for the padding, and there is kNoRow for the padding and after the last
  // one. Then, for all given
  // ids, their places among the rows.
  std::vector<at::Tensor> results(std::vector<at::Tensor> rows);

 private:
  void add(std::span<const at::Tensor> ids, std::int64_t variable, std::int64_t padding,
           const ProgramInfo::Variable& table);

  const ProgramInfo& info_;
  std::vector<std::int64_t> variables_;
  std::vector<internal::EffectHandler::RowRead> reads_;
  std::vector<at::Tensor> row_ids_;  // for each table
  std::vector<at::Tensor> places_;   // for all given ids
};

// Removes what has kNoRow among the ids that results() returns, and what is beside it.
void drop_unused(at::Tensor& row_ids, at::Tensor& rows);

}  // namespace cohort::function
