// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/error.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "cohort/core/exception_context.h"
#include "cohort/core/system_error.h"
#include "cohort/core/text/one_line.h"
#include "cohort/core/torch_error.h"

namespace cohort {
namespace {

constexpr std::array<std::string_view, 17> kCodeNames = {
    "ok",        "cancelled",      "unknown",           "invalid_argument",   "deadline_exceeded",
    "not_found", "already_exists", "permission_denied", "resource_exhausted", "failed_precondition",
    "aborted",   "out_of_range",   "unimplemented",     "internal",           "unavailable",
    "data_loss", "unauthenticated"};

constexpr std::array<std::string_view, 11> kCauseNames = {
    "none",          "wrong_type",       "peer_lost",     "handle_lost",     "function_missing",
    "input_binding", "cancelled_by_job", "closure_input", "closure_aborted", "application",
    "must_restart"};

constexpr int kBadConfiguration = 64;
constexpr int kPeerUnavailable = 69;
constexpr int kInternal = 70;
constexpr int kTryAgain = 75;

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
    case ErrorCode::already_exists:
    case ErrorCode::failed_precondition:
    case ErrorCode::permission_denied:
    case ErrorCode::unauthenticated:
    case ErrorCode::out_of_range:
    case ErrorCode::unimplemented:
    case ErrorCode::data_loss:
      return kBadConfiguration;
    case ErrorCode::unavailable:
    case ErrorCode::deadline_exceeded:
      return kPeerUnavailable;
    case ErrorCode::aborted:
    case ErrorCode::cancelled:
    case ErrorCode::resource_exhausted:
      return kTryAgain;
    default:
      return kInternal;
  }
}

// "Could not run 'aten::empty' with arguments from the 'CUDA' backend. This could be because the
// operator doesn't exist for this backend, …" and the list of kernels, to the end.
void cut_kernels(std::string& text) {
  const std::size_t begin = text.find("Could not run '");
  if (begin == std::string::npos) return;
  const std::size_t end = text.find(". This could be because ", begin);
  if (end != std::string::npos) text.resize(end);
}

Error lack_of_memory(std::string_view what) {
  return Error(ErrorCode::resource_exhausted,
               "not enough memory (" + std::string(what) + "); " + std::string(kMemoryRemedy),
               ErrorCause::application);
}

// A backward pass through a value that was overwritten after the forward pass.
bool is_overwritten_value(std::string_view torch_text) {
  return torch_text.find("has been modified by an inplace operation") != std::string_view::npos;
}

// LibTorch throws no type of its own where the CPU has too little memory.
bool is_lack_of_memory(std::string_view torch_text) {
  return torch_text.find("DefaultCPUAllocator: ") != std::string_view::npos &&
         torch_text.find("memory") != std::string_view::npos;
}

// In a catch block.
Error error_of_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return error_of_torch(error, ErrorCode::unknown);
  } catch (const std::system_error& error) {
    const std::error_condition condition = error.code().default_error_condition();
    const int number = condition.category() == std::generic_category() ? condition.value() : 0;
    const ErrorCode code = code_of_errno(number, ErrorCode::unknown);
    if (code == ErrorCode::unknown) return Error(code, error.what(), ErrorCause::application);
    const bool lacks_files = number == EMFILE || number == ENFILE;
    return Error(code, std::string(error.what()) + ": " + text_of_errno(number),
                 lacks_files ? ErrorCause::none : ErrorCause::application);
  } catch (const std::bad_alloc&) {
    return lack_of_memory("std::bad_alloc");
  } catch (const std::exception& error) {
    return Error(ErrorCode::unknown, error.what(), ErrorCause::application);
  } catch (...) {
    return Error(ErrorCode::unknown, "an exception that is not a std::exception",
                 ErrorCause::application);
  }
}

// See note_context().
struct Noted {
  std::exception_ptr exception;
  std::string operation;
};
thread_local Noted noted;

}  // namespace

void internal::note_context(std::exception_ptr exception, std::string operation) {
  noted = {std::move(exception), std::move(operation)};
}

Error current_error() {
  Error error = error_of_current_exception();
  if (noted.exception == nullptr || noted.exception != std::current_exception()) return error;
  return std::move(error).during(noted.operation);
}

std::string_view name_of(ErrorCode code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : "unknown";
}

std::string_view name_of(ErrorCause cause) {
  const auto index = static_cast<std::size_t>(cause);
  return index < kCauseNames.size() ? kCauseNames[index] : "none";
}

Error::Error(ErrorCode code, std::string message, ErrorCause cause)
    : code_(code), cause_(cause), message_(std::move(message)) {
  compose();
}

RetryClass Error::retry_class() const {
  switch (cause_) {
    case ErrorCause::peer_lost:
    case ErrorCause::handle_lost:
    case ErrorCause::function_missing:
    case ErrorCause::closure_aborted:
      return RetryClass::elsewhere;
    case ErrorCause::application:
    case ErrorCause::must_restart:
      return RetryClass::never;
    default:
      break;
  }
  switch (code_) {
    case ErrorCode::unavailable:
    case ErrorCode::aborted:
      return RetryClass::elsewhere;
    case ErrorCode::deadline_exceeded:
    case ErrorCode::resource_exhausted:
      return RetryClass::later;
    default:
      return RetryClass::never;
  }
}

Error&& Error::at(std::string origin, std::uint64_t incarnation) && {
  origin_ = std::move(origin);
  incarnation_ = incarnation;
  compose();
  return std::move(*this);
}

Error&& Error::during(std::string operation) && {
  context_.push_back(std::move(operation));
  text_.append("\n  while ").append(internal::printable(context_.back()));
  return std::move(*this);
}

Error&& Error::because(ErrorCause cause) && {
  cause_ = cause;
  compose();
  return std::move(*this);
}

void Error::compose() {
  text_ = std::string(name_of(code_));
  if (!origin_.empty()) text_.append(" from ").append(origin_);
  text_.append(": ").append(message_);
  for (const std::string& line : context_) text_.append("\n  while ").append(line);
  text_ = internal::printable(text_);
}

bool has_device(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU || type == c10::DeviceType::Meta) return true;
  const auto* devices =
      c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type)].load();
  return devices != nullptr && devices->deviceCount() > 0;
}

std::string text_of_torch_error(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  cut_kernels(text);
  const bool is_about_cuda =
      text.find("CUDA") != std::string::npos || text.find("cuda") != std::string::npos;
  if (is_about_cuda && !has_device(c10::DeviceType::CUDA))
    text += "; this process has no CUDA device: leave out .cuda() and torch::kCUDA";
  if (is_overwritten_value(text)) {
    text +=
        "; something has written in place into a value that the backward pass needs: where the "
        "step has done so (mul_(), sub_(), …), also into another part of a tensor whose views are "
        "the values of several replicas, write into a clone() or use the operator without '_'; "
        "where an optimizer has updated a variable since the forward pass, compute the gradients "
        "of all optimizers before the first update (compute_gradients(), then apply_gradients()), "
        "or call forward() again after it";
  }
  return text;
}

Error error_of_torch(const c10::Error& error, ErrorCode code) {
  const std::string text = text_of_torch_error(error);
  if (is_lack_of_memory(text)) return lack_of_memory(text);
  return Error(is_overwritten_value(text) ? ErrorCode::invalid_argument : code, text,
               ErrorCause::application);
}

int exit_code_of(const Error& error) {
  const int exit_code = exit_code_of(error.code());
  if (error.cause() == ErrorCause::must_restart) return kTryAgain;
  // A broken frame has the code data_loss, but it also ends the connection to the peer. So does a
  // lack of memory for what arrives, of which the peer is not the reason.
  const bool lacks = error.code() == ErrorCode::resource_exhausted;
  if (error.cause() == ErrorCause::peer_lost && !lacks) return kPeerUnavailable;
  // A kernel that fails in a step has the code invalid_argument, but it is a fault of the program.
  const bool is_of_program = error.cause() == ErrorCause::application;
  return is_of_program && exit_code == kBadConfiguration ? kInternal : exit_code;
}

bool is_task_loss(const Error& error) {
  switch (error.cause()) {
    case ErrorCause::none:
      break;
    case ErrorCause::peer_lost:  // but for a lack of memory here, which ended the connection
      return error.code() != ErrorCode::resource_exhausted;
    case ErrorCause::handle_lost:
    case ErrorCause::closure_aborted:
      return true;
    default:
      return false;
  }
  return error.code() == ErrorCode::unavailable || error.code() == ErrorCode::deadline_exceeded ||
         error.code() == ErrorCode::aborted;
}

namespace internal {
void throw_assertion(const char* condition, const char* file, int line) {
  throw_error(ErrorCode::internal, "broken invariant `", condition, "` at ", file, ":", line,
              "; this is a fault of Cohort, please report it");
}
}  // namespace internal

}  // namespace cohort
