// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/function.h"

#include <ATen/ops/scalar_tensor.h>

#include "cohort/function/tracer/trace_notes.h"

namespace cohort {
namespace function {
namespace {

// There may be many traces: a number that changes at each call makes one per call.
constexpr std::size_t kListingsMax = 16;

}  // namespace

std::shared_ptr<TraceNotes> new_trace_notes() { return std::make_shared<TraceNotes>(); }

void TraceNotes::add(std::string listing) {
  const Lock lock(mutex_);
  ++count_;
  listings_.push_back(std::move(listing));
  if (listings_.size() > kListingsMax) listings_.pop_front();
}

std::string TraceNotes::programs() const {
  const Lock lock(mutex_);
  std::string text;
  std::size_t number = count_ - listings_.size();
  for (const std::string& listing : listings_) {
    text += "program " + std::to_string(++number) + " of " + std::to_string(count_) + ":\n";
    text += listing;
  }
  return text;
}

void refuse_integer(std::int64_t value, std::int64_t min, std::uint64_t max) {
  COHORT_CHECK(value >= 0 || min != 0, ErrorCode::invalid_argument,
               "[function.call] expected an integer that is not negative, got ", value,
               " for a parameter of an unsigned type, as std::size_t; pass 0 or more, or declare "
               "the parameter std::int64_t");
  internal::throw_error(ErrorCode::invalid_argument, "[function.call] expected an integer from ",
                        min, " to ", max, ", got ", value, "; give the parameter a wider type");
}

std::string name_of_place(std::string_view file, int line) {
  // Made inside of the standard library, as by std::optional::emplace(): that says nothing.
  if (file.find("/c++/") != std::string_view::npos) return "function";
  return "function at " + std::string(file.substr(file.rfind('/') + 1)) + ":" +
         std::to_string(line);
}

std::string taking(std::size_t index, std::string_view function) {
  return "taking argument " + std::to_string(index) + " of '" + std::string(function) + "'";
}

void refuse_argument(std::string_view type, const Nest& argument, std::size_t index,
                     std::string_view function) {
  const bool is_handle = argument.kind() == Nest::Kind::handle;
  throw Error(
      ErrorCode::invalid_argument,
      "[function.call] expected " + std::string(type) + " as argument " + std::to_string(index) +
          " of '" + std::string(function) + "', got " +
          (is_handle ? std::string(argument.handle()->handle_kind()) : argument.structure()) +
          "; pass " + std::string(type) + ", or change the type of the parameter",
      ErrorCause::wrong_type);
}

}  // namespace function

Function Function::registered(std::string name) {
  COHORT_CHECK(!name.empty(), ErrorCode::invalid_argument,
               "[function.registered] expected a name, got an empty one");
  auto state = std::make_shared<State>();
  state->name = name;
  state->registered_name = std::move(name);
  Function made;
  made.state_ = std::move(state);
  return made;
}

Nest Function::call(std::span<const Nest> arguments) const {
  COHORT_CHECK(state_->body != nullptr, ErrorCode::failed_precondition, "[function.call] '", name(),
               "' is registered on the servers and has no body here; schedule it instead");
  std::vector<Nest> converted(arguments.begin(), arguments.end());
  convert_numbers(converted);
  return state_->body(converted);
}

void Function::convert_numbers(std::span<Nest> arguments) const {
  const std::vector<bool>& takes_tensor = state_->takes_tensor;
  for (std::size_t i = 0; i < arguments.size() && i < takes_tensor.size(); ++i) {
    Nest& argument = arguments[i];
    if (!takes_tensor[i]) continue;
    if (argument.kind() == Nest::Kind::real) {
      argument = at::scalar_tensor(argument.real(), at::kDouble);
    } else if (argument.kind() == Nest::Kind::integer) {
      argument = at::scalar_tensor(argument.integer(), at::kLong);
    } else if (argument.kind() == Nest::Kind::boolean) {
      argument = at::scalar_tensor(argument.boolean(), at::kBool);
    }
  }
}

std::string Function::program() const {
  COHORT_CHECK(state_->body != nullptr, ErrorCode::failed_precondition, "[function.program] '",
               name(), "' is registered on the servers, which run it as it is: it has no program");
  std::string text = state_->notes->programs();
  COHORT_CHECK(!text.empty(), ErrorCode::failed_precondition, "[function.program] expected '",
               name(), "' to be traced, got no trace yet; schedule it once first");
  return text;
}

}  // namespace cohort
