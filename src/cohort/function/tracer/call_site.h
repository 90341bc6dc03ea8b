// SPDX-License-Identifier: Apache-2.0
// Where an operator was called: in the user's code, and by which code of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::function {

// The call stack at one moment, without frames of LibTorch and libcohort.so. It is fast to take;
// lines() reads debug information, which takes up to a second. Thread-compatible.
class CallStack {
 public:
  // `outermost`: the frame address of the tracer's first entry on this thread, or nullptr. Empty
  // where nothing can be known.
  static CallStack here(const void* outermost) noexcept;

  // At most three lines "\n    at FUNCTION at FILE:LINE", innermost first, of the user's own code.
  // The innermost one is "\n    at FUNCTION in MODULE+OFFSET" where it has no debug information or
  // addr2line is missing. Never throws; empty where nothing is known.
  std::string lines() const noexcept;
  // Equal for stacks whose lines() are equal.
  std::string key() const;

  struct Frame {
    std::string module;
    std::uintptr_t offset = 0;
    // Called, directly or not, the tracer's first entry.
    bool is_outside = false;
  };

 private:
  std::vector<Frame> frames_;
};

// A function's name as people read it. Code that the compiler has put into what calls it bears the
// caller's name, which for a step is the page that our own template and std::function's have:
// "main::{lambda(at::Tensor)#1}::operator()" in its place, or "operator()" where it says no more.
std::string without_machinery(const std::string& function);

// Whether the current operator was called through at::_ops::`op`::call by a function whose mangled
// name begins with `function`, with no code of another library in between. Also false where names
// were stripped.
bool is_called_by(std::string_view op, std::string_view function) noexcept;
// Whether some function on the stack has a mangled name that contains `function`.
bool is_called_inside(std::string_view function) noexcept;

}  // namespace cohort::function
