// SPDX-License-Identifier: Apache-2.0
// How a pass fails: the texts of its errors.
#include <torch/csrc/autograd/anomaly_mode.h>

#include <sstream>

#include "cohort/core/torch_error.h"
#include "cohort/function/program/value_text.h"
#include "cohort/function/tracer/recorder.h"

namespace cohort::function {
namespace {

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? text_of_torch_error(*torch_error) : error.what();
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
                     " (with " + tensors_among(op.schema(), arguments) + ")" + hint_of_op() +
                     position();
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
