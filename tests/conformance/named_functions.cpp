// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/named_functions.h"

#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "cohort/core/error.h"
#include "tests/conformance/arithmetic.h"

namespace cohort::conformance {
namespace {

at::Scalar number_of(const Json& json) {
  if (!json.is_number()) throw CaseFault("expected a number, got " + brief(json, 80));
  return json.is_number_integer() ? at::Scalar(json.get<std::int64_t>())
                                  : at::Scalar(json.get<double>());
}

const at::Tensor& numbers(const Nest& element, const std::string& name) {
  const at::Tensor& tensor = first_tensor(element, name);
  check_numbers(tensor.scalar_type(), name);
  return tensor;
}

at::Tensor differs(const at::Tensor& x, const Json& k) {
  if (!StringTensor::is(x)) return at::ne(x, number_of(k));
  if (x.numel() != 1) refuse("ne", TensorSpec::of(x).to_string());
  return at::scalar_tensor(!has_value(x, k), at::ScalarType::Bool);
}

Dataset rows_of_generator(const Nest& element) {
  const at::Tensor value = first_tensor(element, "generator_repeat_self");
  const std::int64_t count = integer_of(value, "generator_repeat_self");
  return Dataset::from_generator(
      [=]() -> Generator {
        return [=, given = std::int64_t{0}](Nest& item) mutable {
          if (given++ >= count) return false;
          item = value;
          return true;
        };
      },
      ElementSpec::of(value));
}

// As in TensorFlow, an integer mean is rounded towards zero, and that of no values is 0.
at::Tensor mean_of(const at::Tensor& x) {
  if (at::isFloatingType(x.scalar_type())) return at::mean(x);
  check_numbers(x.scalar_type(), "mean");
  if (x.numel() == 0) return at::zeros({}, x.scalar_type());
  return at::div(at::sum(x), x.numel(), "trunc").to(x.scalar_type());
}

at::Tensor leading_size(const at::Tensor& x) {
  return at::scalar_tensor(x.dim() == 0 ? 1 : x.size(0), at::ScalarType::Long);
}

at::Tensor twice(const at::Tensor& x) { return sum_of(x, x); }

using OnTensor = at::Tensor (*)(const at::Tensor&);

Nest zeros3_and_square(const Nest& x) {
  return Nest::tuple({at::zeros({3}, at::ScalarType::Float),
                      each_tensor(x, [](const at::Tensor& t) { return product(t, t); })});
}

Nest index_and_double(const Nest& x) {
  if (x.kind() != Nest::Kind::tuple || x.items().size() != 2) {
    refuse("index_and_double", x.structure());
  }
  return Nest::tuple({x.items()[0], each_tensor(x.items()[1], twice)});
}

}  // namespace

std::function<at::Tensor(const Nest&)> named_predicate(const std::string& name, const Json& arg) {
  const auto constant = [](bool value) {
    return [=](const Nest&) { return at::scalar_tensor(value, at::ScalarType::Bool); };
  };
  if (name == "true") return constant(true);
  if (name == "false") return constant(false);
  if (name == "mod_eq") {
    return [divisor = number_of(arg.at(0)), rest = number_of(arg.at(1))](const Nest& x) {
      return at::eq(at::remainder(numbers(x, "mod_eq"), divisor), rest);
    };
  }
  if (name == "even") {
    return [](const Nest& x) { return at::eq(at::remainder(numbers(x, "even"), 2), 0); };
  }
  if (name == "lt") {
    return [k = number_of(arg)](const Nest& x) { return at::lt(numbers(x, "lt"), k); };
  }
  if (name == "ne") {
    return [=](const Nest& x) { return differs(first_tensor(x, "ne"), arg); };
  }
  if (name == "not_bool") {
    return [](const Nest& x) { return first_tensor(x, "not_bool"); };
  }
  throw CaseFault("unknown filter function '" + name + "'");
}

std::function<Dataset(const Nest&)> named_dataset(const std::string& name, const Json& arg) {
  if (name == "tensors") return [](const Nest& x) { return Dataset::from_tensors(x); };
  if (name == "repeat_self") {
    return [](const Nest& x) {
      return Dataset::from_tensors(x).repeat(integer_of(first_tensor(x, "repeat_self"), "repeat"));
    };
  }
  if (name == "slices") return [](const Nest& x) { return Dataset::from_tensor_slices(x); };
  if (name == "range") {
    return
        [](const Nest& x) { return Dataset::range(integer_of(first_tensor(x, "range"), "range")); };
  }
  if (name == "range_block") {
    return [k = arg.get<std::int64_t>()](const Nest& x) {
      const std::int64_t start = integer_of(first_tensor(x, "range_block"), "range_block") * k;
      return Dataset::range(start + k, {.start = start});
    };
  }
  if (name == "tfrecord") {
    return [](const Nest& x) {
      return Dataset::tf_record(StringTensor::of(first_tensor(x, "tfrecord")));
    };
  }
  if (name == "text_line") {
    return [](const Nest& x) {
      return Dataset::text_line(StringTensor::of(first_tensor(x, "text_line")));
    };
  }
  if (name == "generator_repeat_self") return rows_of_generator;
  if (name == "not_a_dataset") return [](const Nest&) { return Dataset(nullptr); };
  throw CaseFault("unknown function from an element to a dataset '" + name + "'");
}

std::function<Nest(const Nest&)> named_replica_function(const std::string& name) {
  static const std::map<std::string, OnTensor> on_tensors = {
      {"mul2", twice},
      {"twice", twice},
      {"square", [](const at::Tensor& x) { return product(x, x); }},
      {"mean", mean_of},
      {"sum", [](const at::Tensor& x) { return at::sum(x).to(x.scalar_type()); }},
      {"size", leading_size},
      {"id", [](const at::Tensor& x) { return x; }}};
  const auto found = on_tensors.find(name);
  if (found != on_tensors.end()) {
    return [fn = found->second](const Nest& x) { return each_tensor(x, fn); };
  }
  if (name == "zeros3_and_square") return zeros3_and_square;
  if (name == "index_and_double") return index_and_double;
  throw CaseFault("unknown replica function '" + name + "'");
}

}  // namespace cohort::conformance
