// SPDX-License-Identifier: Apache-2.0
// The one error type of the library. It is thrown inside a process and converted to a gRPC status
// where it leaves the process.
//
//   COHORT_CHECK(count > 0, ErrorCode::invalid_argument,
//                "[data.batch] expected batch_size > 0, got ", count);
//
// The reaction to an error follows from its code(), origin() and cause(), never from its text.
#pragma once

#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// gRPC's canonical codes with their numbers, except OK (0).
enum class ErrorCode : std::uint8_t {
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  already_exists = 6,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  aborted = 10,
  out_of_range = 11,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  data_loss = 15,
  unauthenticated = 16,
};

// The event that led to the error, if the code alone does not tell it. The coordinator decides by a
// table over (code, origin, cause) what a failure means.
enum class ErrorCause : std::uint8_t {
  none = 0,
  wrong_type = 1,        // tf's TypeError: a wrong kind of argument, a subtype of invalid_argument
  peer_lost = 2,         // the connection to origin() broke or was refused
  handle_lost = 3,       // origin() restarted and does not know the resource any more
  function_missing = 4,  // origin() does not have the function, or no longer
  input_binding = 5,     // the arguments of a closure could not be bound on origin()
  cancelled_by_job = 6,  // cancelled because a different closure of the job failed
  closure_input = 7,     // tf's ClosureInputError: an input resource of the closure is broken
  closure_aborted = 8,   // tf's ClosureAbortedError: the value was lost with its worker
  application = 9,       // thrown by user code
  must_restart = 10,     // this process cannot go on, but it can when it is started again
};

// Whether the same call may succeed: never, later at the same task, or at a different task.
enum class RetryClass : std::uint8_t { never, later, elsewhere };

COHORT_API std::string_view name_of(ErrorCode code);
COHORT_API std::string_view name_of(ErrorCause cause);

// A value type; copying is cheap enough for error paths. Thread-compatible.
class COHORT_API Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, ErrorCause cause = ErrorCause::none);

  ErrorCode code() const { return code_; }
  ErrorCause cause() const { return cause_; }
  // The message alone, without the context that what() adds.
  const std::string& message() const { return message_; }
  // The task where the error happened, for example "worker:1"; empty for this process.
  const std::string& origin() const { return origin_; }
  // The incarnation of the origin, which changes when the task restarts; 0 if it is not known.
  std::uint64_t incarnation() const { return incarnation_; }
  // "while …" lines, innermost first.
  const std::vector<std::string>& context() const { return context_; }
  RetryClass retry_class() const;
  // Everything in one text: code, origin, message, context.
  const char* what() const noexcept override { return text_.c_str(); }

  // Builders, for rethrowing: `throw std::move(e).at("worker:1").during("pull from ps:0")`.
  Error&& at(std::string origin, std::uint64_t incarnation = 0) &&;
  Error&& during(std::string operation) &&;
  Error&& because(ErrorCause cause) &&;

 private:
  void compose();

  ErrorCode code_;
  ErrorCause cause_;
  std::string message_;
  std::string origin_;
  std::uint64_t incarnation_ = 0;
  std::vector<std::string> context_;
  std::string text_;
};

// The exception that is being handled, as an Error. An Error is unchanged; a lack of open files or
// memory, also LibTorch's, becomes resource_exhausted; any other exception becomes `unknown` with
// the cause `application`. Call it only inside a catch block.
COHORT_API Error current_error();

// Exit codes of programs (sysexits): 64 configuration, 69 peer unavailable, 70 internal, 75 try
// again.
COHORT_API int exit_code_of(const Error& error);

// Whether the error says that another task of the job, or the connection to it, was lost or did not
// answer in time, so that the others can go on without it: after
// MultiWorkerMirroredStrategy::rebuild(), for instance. False if this process cannot go on
// (ErrorCause::must_restart): let such an error leave the program, whose exit code then is 75.
COHORT_API bool is_task_loss(const Error& error);

namespace internal {
template <class... Parts>
[[noreturn]] void throw_error(ErrorCode code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(code, text.str());
}
[[noreturn]] COHORT_API void throw_assertion(const char* condition, const char* file, int line);
}  // namespace internal

// Checks for mistakes of the caller and failures of the system:
// COHORT_CHECK(condition, code, message parts…).
#define COHORT_CHECK(condition, code, ...) \
  ((condition) ? void(0) : ::cohort::internal::throw_error(code, __VA_ARGS__))
// Checks an invariant of the library itself; enabled in every build.
#define COHORT_ASSERT(condition) \
  ((condition) ? void(0) : ::cohort::internal::throw_assertion(#condition, __FILE__, __LINE__))

}  // namespace cohort
