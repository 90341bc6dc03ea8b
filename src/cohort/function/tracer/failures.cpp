// SPDX-License-Identifier: Apache-2.0
// How a pass fails: the texts of its errors.
#include <torch/csrc/autograd/anomaly_mode.h>

#include <sstream>

#include "cohort/core/torch_error.h"
#include "cohort/function/program/value_text.h"
#include "cohort/function/tracer/recorder.h"
#include "cohort/function/tracer/row_tables.h"

namespace cohort::function {
namespace {

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? text_of_torch_error(*torch_error) : error.what();
}

// The position of the first id that is no row; -1 if there is none. It runs no operator, which
// would be recorded.
template <class Id>
std::int64_t wrong_position(const at::Tensor& ids, std::int64_t rows) {
  const auto* const all = ids.data_ptr<Id>();
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    if (all[i] < 0 || all[i] >= rows) return i;
  return -1;
}

// Says which id is no row of `table`, where an operator that reads rows fails: LibTorch does not.
std::string wrong_id(const RowReader& reader, std::span<const c10::IValue> arguments,
                     const TracedVariable* table) {
  if (table == nullptr || !arguments[reader.ids].isTensor()) return {};
  const at::Tensor& ids = arguments[reader.ids].toTensor();
  const bool are_wide = ids.defined() && ids.scalar_type() == at::kLong;
  const bool are_ids = ids.defined() && ids.is_cpu() && ids.is_contiguous() &&
                       (are_wide || ids.scalar_type() == at::kInt);
  const std::int64_t dim = reader.axis == kNoArgument ? 0 : arguments[reader.axis].toInt();
  if (!are_ids || dim != 0) return {};
  const std::int64_t rows = arguments[reader.table].toTensor().size(0);
  const std::int64_t wrong =
      are_wide ? wrong_position<std::int64_t>(ids, rows) : wrong_position<std::int32_t>(ids, rows);
  if (wrong < 0) return {};
  const std::int64_t id =
      are_wide ? ids.data_ptr<std::int64_t>()[wrong] : ids.data_ptr<std::int32_t>()[wrong];
  return "; expected ids of the " + std::to_string(rows) + " rows of variable '" + table->name +
         "', got " + std::to_string(id) + " at position " + std::to_string(wrong);
}

}  // namespace

bool OpFailure::explains(const std::exception& error) const {
  return message_of(error).find(message) != std::string::npos;
}

std::string Recorder::position() const {
  std::ostringstream text;
  if (!composites_.empty()) {
    text << " [inside ";
    for (std::size_t i = 0; i < composites_.size(); ++i)
      text << (i > 0 ? " > " : "") << composites_[i];
    text << ']';
  }
  text << "; op #" << draws_.size() + program_.ops.size() << " of the trace of '" << options_.name
       << '\'';
  if (!program_.ops.empty()) text << ", after " << program_.ops.back().name;
  return text.str();
}

void Recorder::fail(std::string_view what, const std::string& reason) {
  std::string text = "[function.trace] cannot trace '" + std::string(what) + "': " + reason;
  text += hint_of_op() + position();
  if (options_.names_call_site) text += CallStack::here(outermost_frame_).lines();
  failure_ = Error(ErrorCode::invalid_argument, text);
  throw *failure_;
}

// The body may catch the exception, so the text gets its slow part, the call site, only later.
void Recorder::note_failure(const c10::OperatorHandle& op, Arguments arguments,
                            const std::exception& error) {
  std::string message = message_of(error);
  // The operators around the one that threw throw the same exception.
  if (op_failure_ && op_failure_->message == message) return;
  std::string text = "[function.trace] '" + op.operator_name().name + "' failed: " + message +
                     " (with " + tensors_among(op.schema(), arguments) + ")";
  const RowReader* const reader =
      row_reader(op.operator_name().name, op.operator_name().overload_name);
  if (reader != nullptr && arguments[reader->table].isTensor())
    text += wrong_id(*reader, arguments, variable_at(arguments[reader->table].toTensor()));
  text += hint_of_op() + position();
  op_failure_ = OpFailure{std::move(message), std::move(text), CallStack::here(outermost_frame_)};
}

std::string Recorder::hint() const {
  std::string text;
  if (has_run_script_) {
    text +=
        "; it calls a TorchScript module (torch::jit::Module), whose interpreter chooses other "
        "operators from call to call: write that part as a torch::nn::Module, or register the "
        "whole step by name (Function::registered)";
  }
  if (torch::autograd::AnomalyMode::is_enabled()) {
    text +=
        "; anomaly detection is on, which reads every gradient on the host: switch it off "
        "(torch::autograd::AnomalyMode) and call cohort::check_finite() inside the function";
  }
  return text;
}

std::string Recorder::hint_of_op() const {
  if (!is_op_sparse_) return hint();
  return hint() +
         "; it works on a sparse tensor, as the gradient of an embedding with sparse(true) is: "
         "make the embedding without it, or go on with to_dense()";
}

}  // namespace cohort::function
