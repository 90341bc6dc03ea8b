// SPDX-License-Identifier: Apache-2.0
// Shared by the tracer's tests: a host for programs, and the comparison of a program with its
// function.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/function/prepared_program.h"
#include "cohort/function/trace.h"

namespace cohort::function {

using Tensors = std::vector<at::Tensor>;

inline void seed_default_generator(std::uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

// Standard normal values that depend on `seed` alone.
inline at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions());
}

// Equal dtype, sizes and bits.
inline ::testing::AssertionResult bits_equal(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.defined() != expected.defined())
    return ::testing::AssertionFailure() << "one is undefined";
  if (!actual.defined()) return ::testing::AssertionSuccess();
  if (TensorSpec::of(actual) != TensorSpec::of(expected)) {
    return ::testing::AssertionFailure() << TensorSpec::of(actual).to_string() << " against "
                                         << TensorSpec::of(expected).to_string();
  }
  auto flat = [](const at::Tensor& tensor) {
    at::Tensor dense = tensor.is_sparse() ? tensor.to_dense() : tensor;
    if (dense._is_zerotensor()) dense = dense.clone();
    return dense.detach().resolve_conj().resolve_neg().contiguous();
  };
  at::Tensor a = flat(actual);
  at::Tensor b = flat(expected);
  if (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the values differ";
}

// Variables by storage, and what effects did to them. Used only from one thread.
class LocalHost final : public internal::EffectHandler {
 public:
  struct Applied {
    std::string rule;
    std::string optimizer;
    std::int64_t variable;
    at::Tensor gradient;
    std::vector<double> hyper;
  };
  struct Assigned {
    internal::Effect::Kind kind;
    std::int64_t variable;
    at::Tensor value;
  };

  Tensors iterator_next(std::int64_t resource) override {
    return {normal({3, 2}, 500 + resource + 10 * draws_++)};
  }
  void update(internal::Effect effect) override {
    const auto variable = static_cast<std::int64_t>(effect.variable);
    if (effect.kind == internal::Effect::Kind::apply) {
      applied.push_back({effect.rule, effect.optimizer, variable, effect.tensors[0], effect.hyper});
    } else {
      assigned.push_back({effect.kind, variable, effect.tensors[0].clone()});
    }
  }

  std::vector<Applied> applied;
  std::vector<Assigned> assigned;

 private:
  int draws_ = 0;
};

class TraceCase : public ::testing::Test {
 protected:
  TraceCase() {
    options_.names_call_site = false;
    options_.variable_of = [this](const void* storage) -> const TracedVariable* {
      auto found = variables_.find(storage);
      return found == variables_.end() ? nullptr : &found->second;
    };
  }

  // Registers `tensor` and returns it.
  at::Tensor variable(const std::string& name, at::Tensor tensor, bool is_remote = true) {
    bool is_trainable = tensor.requires_grad();
    tensors_[name] = tensor;
    options_.variables.push_back(tensor);
    variables_[tensor.storage().unsafeGetStorageImpl()] = {name, is_remote, is_trainable, false,
                                                           tensor};
    return tensor;
  }
  at::Tensor parameter(const std::string& name, at::IntArrayRef sizes, bool is_remote = true) {
    return variable(name, normal(sizes, 1000 + tensors_.size()).requires_grad_(), is_remote);
  }
  // All parameters and buffers of a module, as variables of this process.
  template <class Module>
  void register_local(Module& module) {
    for (auto& item : module.named_parameters()) variable(item.key(), item.value(), false);
    for (auto& item : module.named_buffers()) variable(item.key(), item.value(), false);
  }

  Traced traced(const Tensors& inputs, const Tensors& others, const TraceBody& body) {
    return trace(inputs, others, body, options_);
  }
  // For bodies without arguments.
  Traced traced(const TraceBody& body) { return traced({}, {}, body); }

  // The current values of the program's variables; `is_shared`: the tensors themselves, not copies.
  Tensors values_of(const ProgramInfo& info, bool is_shared = false) {
    Tensors values;
    for (const auto& needed : info.variables) {
      at::Tensor own = tensors_.at(needed.name).detach();
      values.push_back(is_shared ? own : own.clone());
    }
    return values;
  }
  Tensors replay(const Traced& traced, Tensors inputs, std::uint64_t seed = 1) {
    auto program = PreparedProgram::decode(traced.bytes);
    for (const at::Tensor& captured : traced.captured_inputs) inputs.push_back(captured);
    return program->run(inputs, values_of(program->info()), host_, seed);
  }

  // Traces `body` with the inputs of seeds 0 and 1, then expects that program and body agree bit
  // for bit for the inputs of seeds 0 to 3.
  void expect_equal_to_eager(const std::function<Tensors(std::uint64_t seed)>& inputs,
                             const TraceBody& body) {
    Traced result = traced(inputs(0), inputs(1), body);
    for (std::uint64_t seed : {0, 1, 2, 3}) {
      seed_default_generator(seed);
      Tensors expected = body(inputs(seed));
      Tensors actual = replay(result, inputs(seed), seed);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(bits_equal(actual[i], expected[i]))
            << "output " << i << ", inputs of seed " << seed;
      }
    }
  }
  // The same with one normal tensor of `sizes`.
  void expect_equal_to_eager(std::vector<std::int64_t> sizes,
                             const std::function<at::Tensor(at::Tensor)>& body) {
    expect_equal_to_eager([sizes](std::uint64_t seed) { return Tensors{normal(sizes, seed)}; },
                          [body](const Tensors& inputs) { return Tensors{body(inputs[0])}; });
  }

  // The text of the error of tracing `body` with a 4x3 tensor.
  std::string refusal(const std::function<at::Tensor(at::Tensor)>& body) {
    try {
      traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)},
             [&](const Tensors& inputs) { return Tensors{body(inputs[0])}; });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      return error.what();
    }
    return "no error";
  }

  TraceOptions options_;
  LocalHost host_;
  std::map<std::string, at::Tensor> tensors_;

 private:
  std::map<const void*, TracedVariable> variables_;
};

}  // namespace cohort::function
