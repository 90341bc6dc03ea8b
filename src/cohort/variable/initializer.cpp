// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/initializer.h"

#include <ATen/Dispatch.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>
#include <c10/util/TypeCast.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/core/random.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

// The index of an element. It has more than 64 bits in a table with any 64-bit key: element c of
// key k's row has the index that it would have in a variable with all these rows, k * width + c.
__extension__ using ElementIndex = unsigned __int128;

// The elements of a tensor: those of one range of a variable, or the rows of some keys.
struct ElementRuns {
  std::uint64_t first_index = 0;
  std::span<const std::int64_t> keys = {};
};

// Elements 2n and 2n + 1 are made from block n, two words each.
std::array<double, 2> uniform_pair(ElementIndex block, std::uint64_t key) {
  at::Philox4_32 generator(key, /*subsequence=*/static_cast<std::uint64_t>(block >> 64),
                           /*offset=*/static_cast<std::uint64_t>(block));
  const std::array<std::uint32_t, 4> words{generator(), generator(), generator(), generator()};
  const auto unit = [&](std::size_t word) {  // [0, 1), as many bits as a double has
    const std::uint64_t bits = (static_cast<std::uint64_t>(words[word + 1]) << 32) | words[word];
    return std::ldexp(static_cast<double>(bits >> 11), -53);
  };
  return {unit(0), unit(2)};
}

// The Box-Muller transform: two independent standard normal numbers from two uniform ones.
std::array<double, 2> normal_pair(ElementIndex block, std::uint64_t key) {
  const auto [first, second] = uniform_pair(block, key);
  const double radius = std::sqrt(-2 * std::log(1 - first));
  const double angle = 2 * std::numbers::pi * second;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Calls visit(first, count, index) for runs of elements: those from `first` on have consecutive
// indices from `index` on.
template <class Visit>
void for_each_run(const ElementRuns& runs, const at::Tensor& values, const Visit& visit) {
  if (runs.keys.empty()) return visit(0, values.numel(), ElementIndex{runs.first_index});
  const std::int64_t width = values.numel() / static_cast<std::int64_t>(runs.keys.size());
  for (std::size_t i = 0; i < runs.keys.size(); ++i) {
    visit(
        static_cast<std::int64_t>(i) * width, width,
        ElementIndex{static_cast<std::uint64_t>(runs.keys[i])} * static_cast<std::uint64_t>(width));
  }
}

template <class Pair>
void fill_random(at::Tensor& values, const ElementRuns& runs, Pair pair_of) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, values.scalar_type(), "cohort::Initializer", [&] {
        auto* const all = values.data_ptr<scalar_t>();
        for_each_run(runs, values,
                     [&](std::int64_t first, std::int64_t count, ElementIndex first_index) {
                       scalar_t* const out = all + first;
                       std::array<double, 2> pair{};
                       for (std::int64_t i = 0; i < count; ++i) {
                         const ElementIndex index = first_index + static_cast<std::uint64_t>(i);
                         const bool is_second = (index & 1) != 0;
                         if (i == 0 || !is_second) pair = pair_of(index >> 1);
                         out[i] = c10::convert<scalar_t>(pair[is_second ? 1 : 0]);
                       }
                     });
      });
}

// For an integer dtype: whether `value` is whole and in range. True for any other dtype.
bool holds(at::ScalarType dtype, double value) {
  if (!at::isIntegralType(dtype, /*includeBool=*/true)) return true;
  return AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, dtype, "cohort::Initializer", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    return std::floor(value) == value && value >= static_cast<double>(Limits::lowest()) &&
           value < std::ldexp(1.0, Limits::digits);
  });
}

// As in torch::nn::init::xavier_uniform_.
double glorot_limit(const std::vector<std::int64_t>& sizes) {
  double field = 1;
  for (std::size_t i = 2; i < sizes.size(); ++i) field *= static_cast<double>(sizes[i]);
  return std::sqrt(6 / (field * static_cast<double>(sizes[0] + sizes[1])));
}

}  // namespace

Initializer Initializer::zeros() { return constant(0); }
Initializer Initializer::ones() { return constant(1); }
Initializer Initializer::constant(double value) { return {Kind::constant, value, 0}; }
Initializer Initializer::glorot_uniform() { return {Kind::glorot, 0, 0}; }

Initializer Initializer::function(Function fn) {
  COHORT_CHECK(fn, ErrorCode::invalid_argument,
               "[initializer.function] expected a function, got an empty std::function");
  Initializer initializer{Kind::function, 0, 0};
  initializer.function_ = std::make_shared<const Function>(std::move(fn));
  return initializer;
}

Initializer Initializer::random_uniform(double min, double max) {
  COHORT_CHECK(std::isfinite(max - min) && min <= max, ErrorCode::invalid_argument,
               "[initializer.random_uniform] expected finite numbers, min <= max, got min ", min,
               " and max ", max, "; exchange them, or take smaller ones");
  return {Kind::uniform, min, max};
}

Initializer Initializer::random_normal(double mean, double stddev) {
  COHORT_CHECK(std::isfinite(mean) && std::isfinite(stddev) && stddev >= 0,
               ErrorCode::invalid_argument,
               "[initializer.random_normal] expected a finite mean, and a finite stddev of 0 or "
               "more, got mean ",
               mean, " and stddev ", stddev, "; give the standard deviation, which has no sign");
  return {Kind::normal, mean, stddev};
}

void Initializer::check_spec(const TensorSpec& spec, std::string_view name) const {
  const bool is_number = at::isFloatingType(spec.dtype) || at::isComplexType(spec.dtype) ||
                         at::isIntegralType(spec.dtype, /*includeBool=*/true);
  COHORT_CHECK(is_number && spec.is_static(), ErrorCode::invalid_argument,
               "[initializer.make] expected a spec of numbers with all sizes, got ",
               spec.to_string(), " (variable '", name, "'); give the dtype and every size");
  if (kind_ == Kind::function) return;
  if (kind_ == Kind::constant) {
    COHORT_CHECK(holds(spec.dtype, first_), ErrorCode::invalid_argument,
                 "[initializer.make] expected a constant that ", dtype_name(spec.dtype),
                 " holds, got ", first_, " (variable '", name,
                 "'); take a floating-point dtype, or another constant");
    return;
  }
  COHORT_CHECK(at::isFloatingType(spec.dtype), ErrorCode::invalid_argument,
               "[initializer.make] expected a floating-point dtype for random values, got ",
               spec.to_string(), " (variable '", name,
               "'); take a floating-point dtype, or zeros(), ones() or constant()");
  COHORT_CHECK(kind_ != Kind::glorot || spec.sizes->size() >= 2, ErrorCode::invalid_argument,
               "[initializer.make] expected at least two dimensions for glorot_uniform, got ",
               spec.to_string(), " (variable '", name,
               "'); a bias has no fan: take zeros() or random_uniform()");
}

void Initializer::fill(at::Tensor& values, const TensorSpec& whole, std::int64_t first_index,
                       std::span<const std::int64_t> keys, std::uint64_t key) const {
  const ElementRuns runs{static_cast<std::uint64_t>(first_index), keys};
  if (kind_ == Kind::function) {
    fill_by_function(values, whole, first_index);
    return;
  }
  if (values.numel() == 0) return;
  if (kind_ == Kind::constant) {
    values.fill_(first_);
  } else if (kind_ == Kind::normal) {
    fill_random(values, runs, [&](ElementIndex block) {
      const auto [first, second] = normal_pair(block, key);
      return std::array{first_ + second_ * first, first_ + second_ * second};
    });
  } else {
    const double limit = kind_ == Kind::glorot ? glorot_limit(*whole.sizes) : 0;
    const double min = kind_ == Kind::glorot ? -limit : first_;
    const double width = (kind_ == Kind::glorot ? limit : second_) - min;
    fill_random(values, runs, [&](ElementIndex block) {
      const auto [first, second] = uniform_pair(block, key);
      return std::array{min + width * first, min + width * second};
    });
  }
}

void Initializer::fill_by_function(at::Tensor& values, const TensorSpec& whole,
                                   std::int64_t first_index) const {
  RowRange rows;
  if (values.dim() > 0 && values.numel() > 0) {
    rows.begin = first_index / (values.numel() / values.size(0));
    rows.end = rows.begin + values.size(0);
  }
  const at::Tensor made = (*function_)(whole, rows);
  const bool is_defined = made.defined() && made.layout() == at::kStrided;
  const TensorSpec got = is_defined ? TensorSpec::of(made) : TensorSpec();
  const bool is_whole = is_defined && got == whole;
  COHORT_CHECK(is_whole || (is_defined && got == TensorSpec::of(values)),
               ErrorCode::invalid_argument, "[initializer.function] expected rows [", rows.begin,
               ", ", rows.end, ") of ", whole.to_string(), ", got ",
               is_defined ? got.to_string() : "no dense tensor");
  const bool is_part = is_whole && values.sizes() != made.sizes();
  values.copy_((is_part ? made.narrow(0, rows.begin, values.size(0)) : made).detach());
}

at::Tensor Initializer::make(const TensorSpec& spec, std::string_view name,
                             std::uint64_t seed) const {
  check_spec(spec, name);
  at::Tensor values = in_huge_pages(at::empty(*spec.sizes, spec.dtype));
  fill(values, spec, 0, {}, mix_seed(seed, name));
  return values;
}

InitializerRecipe InitializerRecipe::of(const Initializer& initializer) {
  return {.kind = static_cast<std::uint8_t>(initializer.kind_),
          .first = initializer.first_,
          .second = initializer.second_};
}

Initializer InitializerRecipe::initializer() const {
  switch (static_cast<Initializer::Kind>(kind)) {
    case Initializer::Kind::constant:
      return Initializer::constant(first);
    case Initializer::Kind::uniform:
      return Initializer::random_uniform(first, second);
    case Initializer::Kind::normal:
      return Initializer::random_normal(first, second);
    case Initializer::Kind::glorot:
      return Initializer::glorot_uniform();
    case Initializer::Kind::function:
      break;  // cannot be sent
  }
  internal::throw_error(ErrorCode::invalid_argument,
                        "[initializer.recipe] expected a kind from 0 to 3, got ",
                        static_cast<int>(kind), "; its sender is of another version");
}

bool InitializerRecipe::has_numbers(const Initializer& initializer) {
  return initializer.kind_ != Initializer::Kind::function;
}

void InitializerRecipe::check(const Initializer& initializer, const TensorSpec& spec,
                              std::string_view name) {
  initializer.check_spec(spec, name);
}

void InitializerRecipe::fill(const Initializer& initializer, at::Tensor value,
                             std::string_view name, std::uint64_t seed) {
  const TensorSpec spec = TensorSpec::of(value);
  check(initializer, spec, name);
  COHORT_ASSERT(value.is_contiguous());
  initializer.fill(value, spec, 0, {}, mix_seed(seed, name));
}

void InitializerRecipe::check_rows(const Initializer& initializer, const TensorSpec& row,
                                   std::string_view name) {
  COHORT_CHECK(initializer.kind_ != Initializer::Kind::glorot, ErrorCode::invalid_argument,
               "[initializer.make] expected an initializer that needs no number of rows, got "
               "glorot_uniform (table '",
               name, "'); use random_uniform() or random_normal()");
  COHORT_CHECK(has_numbers(initializer), ErrorCode::invalid_argument,
               "[initializer.make] expected an initializer whose values a server makes itself, got "
               "function() (table '",
               name, "'); use random_uniform() or random_normal()");
  check(initializer, row, name);
}

void InitializerRecipe::fill_rows(const Initializer& initializer, at::Tensor rows,
                                  std::span<const std::int64_t> keys, std::string_view name,
                                  std::uint64_t seed) {
  COHORT_ASSERT(rows.is_contiguous() && rows.size(0) == static_cast<std::int64_t>(keys.size()));
  initializer.fill(rows, TensorSpec::of(rows), 0, keys, mix_seed(seed, name));
}

at::Tensor Initializer::make_rows(const TensorSpec& spec, RowRange rows, std::string_view name,
                                  std::uint64_t seed) const {
  check_spec(spec, name);
  COHORT_CHECK(!spec.sizes->empty() && 0 <= rows.begin && rows.begin <= rows.end &&
                   rows.end <= spec.sizes->front(),
               ErrorCode::invalid_argument, "[initializer.make_rows] expected rows of ",
               spec.to_string(), ", got [", rows.begin, ", ", rows.end, ") (variable '", name,
               "'); take 0 <= begin <= end <= the first size");
  std::vector<std::int64_t> sizes = *spec.sizes;
  sizes[0] = rows.end - rows.begin;
  at::Tensor values = in_huge_pages(at::empty(sizes, spec.dtype));
  const std::int64_t row_elements = sizes[0] == 0 ? 0 : values.numel() / sizes[0];
  fill(values, spec, rows.begin * row_elements, {}, mix_seed(seed, name));
  return values;
}

Variable local_variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                        std::uint64_t seed, bool is_trainable) {
  at::Tensor value = initializer.make(spec, name, seed);
  return local_variable(std::move(name), std::move(value), is_trainable);
}

}  // namespace cohort
