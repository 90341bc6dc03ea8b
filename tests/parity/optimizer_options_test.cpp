// SPDX-License-Identifier: Apache-2.0
// Random options of random optimizers give the numbers of torch::optim after each step: beside each
// other without a strategy, in run() and in function(), with one replica and with two. Some of our
// gradients are sparse, where those of torch::optim are dense with zeros in the other rows. The
// numbers have the bits of LibTorch's portable kernels, which this program asks for; where it has
// others, the comparison has a tolerance.
//
//   COHORT_FUZZ_PROGRAMS=1000 build/dev/tests/optimizer_options_test    # a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/optimizer_options_test          # one case, printed
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/fuzz_range.h"
#include "cohort/testing/warnings.h"
#include "tests/parity/step_fuzz/comparison.h"

namespace cohort::parity {
namespace {

using Tensors = std::vector<at::Tensor>;

// LibTorch reads it once, when it runs its first kernel.
const int kAskedForPortableKernels = setenv("ATEN_CPU_CAPABILITY", "default", /*overwrite=*/0);

bool has_portable_kernels() {
  const std::string config = at::show_config();
  return !at::hasMKL() && (config.find("usage: NO AVX") != std::string::npos ||
                           config.find("usage: DEFAULT") != std::string::npos);
}

// An unset field is left out on both sides.
struct Options {
  std::string kind;
  std::map<std::string, double> numbers;  // by torch's names
  bool nesterov = false, centered = false, amsgrad = false;

  template <class Field>
  void put(const char* name, Field& field) const {
    if (const auto found = numbers.find(name); found != numbers.end()) field = found->second;
  }
  bool has(const char* name) const { return numbers.contains(name) && numbers.at(name) != 0; }
};

// The fields in which one kind differs from the others have other names on both sides.
Optimizer make_ours(const Options& o, const std::vector<Variable>& variables) {
  const auto put_common = [&](auto& options) {
    o.put("lr", options.learning_rate);
    o.put("weight_decay", options.weight_decay);
  };
  const auto make_adam = [&]<class Kind>(auto options, std::type_identity<Kind>) -> Optimizer {
    put_common(options);
    o.put("beta_1", options.beta_1);
    o.put("beta_2", options.beta_2);
    o.put("eps", options.eps);
    options.amsgrad = o.amsgrad;
    return Kind(variables, options);
  };
  if (o.kind == "Adam") return make_adam(AdamOptions{}, std::type_identity<Adam>());
  if (o.kind == "AdamW") return make_adam(AdamWOptions{}, std::type_identity<AdamW>());
  if (o.kind == "SGD") {
    SGDOptions options{.nesterov = o.nesterov};
    put_common(options);
    o.put("momentum", options.momentum);
    o.put("dampening", options.dampening);
    return SGD(variables, options);
  }
  if (o.kind == "Adagrad") {
    AdagradOptions options;
    put_common(options);
    o.put("lr_decay", options.lr_decay);
    o.put("initial", options.initial_accumulator);
    o.put("eps", options.eps);
    return Adagrad(variables, options);
  }
  RMSpropOptions options{.centered = o.centered};
  put_common(options);
  o.put("alpha", options.alpha);
  o.put("eps", options.eps);
  o.put("momentum", options.momentum);
  return RMSprop(variables, options);
}

std::unique_ptr<torch::optim::OptimizerOptions> torch_options(const Options& o) {
  const auto with_common = [&](auto options) {
    o.put("lr", options.lr());
    o.put("weight_decay", options.weight_decay());
    return std::make_unique<decltype(options)>(options);
  };
  const auto with_adam = [&](auto options) {
    o.put("beta_1", std::get<0>(options.betas()));
    o.put("beta_2", std::get<1>(options.betas()));
    o.put("eps", options.eps());
    options.amsgrad(o.amsgrad);
    return with_common(options);
  };
  if (o.kind == "Adam") return with_adam(torch::optim::AdamOptions());
  if (o.kind == "AdamW") return with_adam(torch::optim::AdamWOptions());
  if (o.kind == "SGD") {
    torch::optim::SGDOptions options(0.01);
    options.nesterov(o.nesterov);
    o.put("momentum", options.momentum());
    o.put("dampening", options.dampening());
    return with_common(options);
  }
  if (o.kind == "Adagrad") {
    torch::optim::AdagradOptions options;
    o.put("lr_decay", options.lr_decay());
    o.put("initial", options.initial_accumulator_value());
    o.put("eps", options.eps());
    return with_common(options);
  }
  torch::optim::RMSpropOptions options;
  options.centered(o.centered);
  o.put("alpha", options.alpha());
  o.put("eps", options.eps());
  o.put("momentum", options.momentum());
  return with_common(options);
}

std::unique_ptr<torch::optim::Optimizer> make_theirs(const Options& o, const Tensors& parameters) {
  const auto options = torch_options(o);
  const auto make = [&]<class Kind, class Of>(std::type_identity<Kind>, std::type_identity<Of>) {
    return std::make_unique<Kind>(parameters, static_cast<const Of&>(*options));
  };
  using std::type_identity;
  namespace optim = torch::optim;
  if (o.kind == "Adam")
    return make(type_identity<optim::Adam>(), type_identity<optim::AdamOptions>());
  if (o.kind == "AdamW")
    return make(type_identity<optim::AdamW>(), type_identity<optim::AdamWOptions>());
  if (o.kind == "SGD") return make(type_identity<optim::SGD>(), type_identity<optim::SGDOptions>());
  if (o.kind == "Adagrad")
    return make(type_identity<optim::Adagrad>(), type_identity<optim::AdagradOptions>());
  return make(type_identity<optim::RMSprop>(), type_identity<optim::RMSpropOptions>());
}

struct Case {
  Options options;
  Options changed;  // from this step on
  int steps = 0, changed_at = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<bool> is_used;    // whether the loss depends on the variable
  std::vector<bool> is_sparse;  // whether it depends on its even rows alone, by an embedding
  std::uint64_t seed = 0;

  std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": " << options.kind << " " << dtype;
    if (options.nesterov) out << " nesterov";
    if (options.centered) out << " centered";
    if (options.amsgrad) out << " amsgrad";
    for (const auto& [name, value] : options.numbers) out << " " << name << "=" << value;
    out << "; from step " << changed_at << " of " << steps;
    for (const auto& [name, value] : changed.numbers) out << " " << name << "=" << value;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      out << " " << at::IntArrayRef(sizes[i]) << (is_sparse[i] ? " sparse" : "");
    return out.str();
  }
};

class CaseMaker {
 public:
  explicit CaseMaker(std::uint64_t seed) : random_(seed) { made_.seed = seed; }

  Case make() {
    Options& o = made_.options;
    o.kind = one_of<std::string>({"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"});
    maybe("lr", {0.1, 0.01, 1.0, 0.037});
    maybe("weight_decay", {0.01, 0.5, 0.0});
    if (o.kind == "SGD" || o.kind == "RMSprop") maybe("momentum", {0.9, 0.5, 0.317, 0.0});
    if (o.kind == "SGD") maybe("dampening", {0.1, 0.5, 1.0, 0.0});
    o.nesterov = o.has("momentum") && !o.has("dampening") && o.kind == "SGD" && chance(0.5);
    if (o.kind == "RMSprop") maybe("alpha", {0.9, 0.5, 0.0, 0.731});
    o.centered = o.kind == "RMSprop" && chance(0.5);
    if (o.kind.starts_with("Adam")) {
      maybe("beta_1", {0.9, 0.5, 0.0, 0.613});
      maybe("beta_2", {0.99, 0.5, 0.0, 0.877});
      o.amsgrad = chance(0.5);
    }
    if (o.kind == "Adagrad") {
      maybe("lr_decay", {0.1, 1.0, 0.0});
      maybe("initial", {0.1, 2.0, 0.0});
    }
    if (o.kind != "SGD") maybe("eps", {1e-6, 1e-3, 0.7, 0.0});
    change();
    made_.dtype = one_of({at::kFloat, at::kDouble});
    for (std::int64_t i = 1 + below(3); i > 0; --i) {
      std::vector<std::int64_t> sizes;
      for (std::int64_t j = below(3); j > 0; --j) sizes.push_back(chance(0.05) ? 0 : 1 + below(40));
      made_.sizes.push_back(sizes);
      made_.is_used.push_back(made_.is_used.empty() || chance(0.85));
      const bool is_table = sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0;
      made_.is_sparse.push_back(is_table && chance(0.5));
    }
    return made_;
  }

 private:
  std::int64_t below(std::uint64_t end) { return static_cast<std::int64_t>(random_() % end); }
  bool chance(double share) { return static_cast<double>(random_() % 1000) < share * 1000; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[random_() % all.size()];
  }
  void maybe(const char* name, std::initializer_list<double> values) {
    if (chance(0.7)) made_.options.numbers[name] = one_of(values);
  }
  // A program may set these between two steps.
  void change() {
    made_.steps = 3 + static_cast<int>(below(6));
    made_.changed_at = 1 + static_cast<int>(below(7));
    made_.changed = made_.options;
    auto& numbers = made_.changed.numbers;
    if (chance(0.5)) numbers["lr"] = one_of({0.2, 0.003});
    if (chance(0.3)) numbers["weight_decay"] = one_of({0.0, 0.03});
    if (made_.options.has("momentum") && chance(0.4))
      numbers["momentum"] = made_.options.nesterov ? 0.25 : one_of({0.0, 0.25});
  }

  std::mt19937_64 random_;
  Case made_;
};

// The gradients of a step in one replica; those of variables that the loss does not depend on are
// undefined. Some of their elements are 0.
Tensors gradients_of(const Case& c, int step, int replica) {
  torch::manual_seed(c.seed * 100 + static_cast<std::uint64_t>(step * 2 + replica));
  Tensors all;
  for (std::size_t i = 0; i < c.sizes.size(); ++i) {
    const at::Tensor gradient = torch::randn(c.sizes[i], c.dtype);
    const at::Tensor is_kept = torch::rand(c.sizes[i]).gt(0.1);
    all.push_back(c.is_used[i] ? gradient.mul(is_kept) : at::Tensor());
    if (c.is_used[i] && c.is_sparse[i]) all[i].slice(0, 1, c10::nullopt, 2).zero_();
  }
  return all;
}

Tensors starts_of(const Case& c) {
  torch::manual_seed(c.seed);
  Tensors all;
  for (const auto& sizes : c.sizes) all.push_back(torch::randn(sizes, c.dtype));
  return all;
}

// After each step, the values of all variables one after the other.
Tensors values_of_torch(const Case& c, int replicas) {
  Tensors parameters, values;
  for (const at::Tensor& start : starts_of(c)) parameters.push_back(start.requires_grad_());
  const auto optimizer = make_theirs(c.options, parameters);
  for (int step = 0; step < c.steps; ++step) {
    if (step == c.changed_at) optimizer->param_groups()[0].set_options(torch_options(c.changed));
    for (int replica = 0; replica < replicas; ++replica) {
      const Tensors gradients = gradients_of(c, step, replica);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        at::Tensor& grad = parameters[i].mutable_grad();
        if (gradients[i].defined()) grad = replica == 0 ? gradients[i] : grad.add(gradients[i]);
      }
    }
    optimizer->step();
    for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach().clone());
  }
  return values;
}

// A strategy with which a case is trained, or none.
struct Way {
  const char* name;
  SynchronousStrategy* strategy;
  bool is_traced;
  int replicas() const { return strategy == nullptr ? 1 : strategy->num_replicas_in_sync(); }
};

// The last one first, with a sparse gradient.
at::Tensor even_rows(const at::Tensor& table) {
  const at::Tensor ids = torch::arange(0, table.size(0), 2).flip(0);
  return torch::embedding(table, ids, -1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
}

at::Tensor even_rows_of(const at::Tensor& gradient) {
  return gradient.slice(0, 0, c10::nullopt, 2).flip(0);
}

Tensors values_of_ours(const Case& c, const Way& way) {
  std::vector<Variable> variables;
  for (const at::Tensor& start : starts_of(c)) {
    const std::string name = "v" + std::to_string(variables.size());
    variables.push_back(way.strategy == nullptr ? local_variable(name, start)
                                                : way.strategy->variable(name, start));
  }
  Optimizer optimizer = make_ours(c.options, variables);
  // All gradients of the step one after the other.
  const auto step_of = [&](const at::Tensor& gradients) {
    at::Tensor loss;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (!c.is_used[i]) continue;
      const std::int64_t count = c10::multiply_integers(c.sizes[i]);
      const at::Tensor gradient = gradients.narrow(0, begin, count).view(c.sizes[i]);
      const at::Tensor& value = variables[i].tensor();
      const at::Tensor part =
          (c.is_sparse[i] ? even_rows(value).mul(even_rows_of(gradient)) : value.mul(gradient))
              .sum();
      loss = loss.defined() ? loss + part : part;
      begin += count;
    }
    optimizer.minimize(loss);
  };
  std::optional<StrategyFunction<std::decay_t<decltype(step_of)>>> traced;
  if (way.is_traced) traced.emplace(way.strategy->function(step_of));
  Tensors values;
  for (int step = 0; step < c.steps; ++step) {
    if (step == c.changed_at) {
      const auto set = [&](const char* option, const char* name) {
        if (c.changed.numbers.contains(option))
          optimizer.set_hyperparameter(name, c.changed.numbers.at(option));
      };
      set("lr", "learning_rate");
      set("weight_decay", "weight_decay");
      if (c.options.has("momentum")) set("momentum", "momentum");
    }
    Tensors of_replicas;
    for (int replica = 0; replica < way.replicas(); ++replica) {
      Tensors flat;
      for (const at::Tensor& gradient : gradients_of(c, step, replica)) {
        if (gradient.defined()) flat.push_back(gradient.flatten());
      }
      of_replicas.push_back(at::cat(flat));
    }
    if (way.strategy == nullptr) {
      step_of(of_replicas[0]);
    } else {
      const PerReplica<at::Tensor> given = way.replicas() == 1
                                               ? PerReplica<at::Tensor>::bare(of_replicas[0])
                                               : PerReplica<at::Tensor>(of_replicas);
      if (way.is_traced) {
        (*traced)(given);
      } else {
        way.strategy->run(step_of, given);
      }
    }
    for (const Variable& variable : variables) values.push_back(variable.read().clone());
  }
  return values;
}

TEST(RandomOptionsOfOptimizers, GiveTheNumbersOfTorch) {
  const testing::Warnings quiet;  // of sparse gradients that change all rows
  ASSERT_EQ(kAskedForPortableKernels, 0);
  const bool has_bits = has_portable_kernels();
  std::cout << "compared " << (has_bits ? "bit for bit\n" : "within bounds\n");
  OneDeviceStrategy one;
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const std::vector<Way> ways{{"no strategy", nullptr, false},
                              {"one device", &one, false},
                              {"one device, traced", &one, true},
                              {"two replicas", &two, false},
                              {"two replicas, traced", &two, true}};
  const testing::FuzzRange range = testing::fuzz_range(60);
  std::map<std::string, int> rules;
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const Case c = CaseMaker(seed).make();
    if (range.count == 1) std::cout << c.text() << "\n";
    ++rules[std::string(make_ours(c.options, {local_variable("w", at::ones({}))}).rule().name())];
    // The difference of two near numbers, in whose root a last bit can be everything.
    if (!has_bits && (c.options.centered || c.options.numbers.contains("eps"))) continue;
    for (const Way& way : ways) {
      SCOPED_TRACE(c.text() + ", " + way.name);
      const Tensors expected = values_of_torch(c, way.replicas());
      const Tensors got = values_of_ours(c, way);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(difference(got[i], expected[i],
                             {.relative = has_bits ? 0 : 1e-3, .ignores_sign_of_zero = true}),
                  "")
            << "after step " << i / c.sizes.size() << ", variable " << i % c.sizes.size();
      }
    }
  }
  if (range.count < 1000) return;
  EXPECT_EQ(rules.size(), 13U) << "all rules with torch's formulas";
  for (const auto& [rule, cases] : rules) std::cout << cases << " cases of " << rule << "\n";
}

}  // namespace
}  // namespace cohort::parity
