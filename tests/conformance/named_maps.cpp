// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "cohort/core/error.h"
#include "tests/conformance/arithmetic.h"
#include "tests/conformance/named_functions.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

using Call = std::function<Nest(const Nest&)>;
using Output = std::function<ElementSpec(const ElementSpec&)>;
using StatePtr = std::shared_ptr<CaseState>;
using Sizes = decltype(TensorSpec::sizes);

// --- specs --------------------------------------------------------------------------------------

// The spec of `part`, a nest whose leaves are indices into `whole.fields`. So a function that
// rearranges elements can also rearrange specs.
ElementSpec part_of(const ElementSpec& whole, const Nest& part) {
  ElementSpec spec;
  spec.structure = part.map_leaves([&](const Nest& leaf) {
    spec.fields.push_back(whole.fields.at(static_cast<std::size_t>(leaf.integer())));
    return Nest(static_cast<std::int64_t>(spec.fields.size()) - 1);
  });
  return spec;
}

Output same() {
  return [](const ElementSpec& input) { return input; };
}

// The output spec of a function that only rearranges leaves: applies it to the nest of field
// indices.
Output shaped_by(Call call) {
  return [call = std::move(call)](const ElementSpec& input) {
    return part_of(input, call(input.structure));
  };
}

using FieldOutput = std::function<TensorSpec(const TensorSpec&)>;
Output each_field(FieldOutput output) {
  return [output = std::move(output)](const ElementSpec& input) {
    ElementSpec spec = input;
    for (TensorSpec& field : spec.fields) field = output(field);
    return spec;
  };
}

Output checked(std::function<void(const TensorSpec&)> check) {
  return each_field([check = std::move(check)](const TensorSpec& field) {
    check(field);
    return field;
  });
}

std::vector<std::int64_t> prepended(std::int64_t size, const at::IntArrayRef rest) {
  std::vector<std::int64_t> sizes{size};
  sizes.insert(sizes.end(), rest.begin(), rest.end());
  return sizes;
}

// --- arithmetic ---------------------------------------------------------------------------------

Output scalar_checked(const Json& k, const std::string& name) {
  return checked([=](const TensorSpec& field) { check_scalar(field.dtype, k, name); });
}

NamedMap add(const Json& k, const StatePtr&) {
  return {[=](const Nest& x) {
            return each_tensor(x, [&](const at::Tensor& t) { return plus(t, k); });
          },
          scalar_checked(k, "add")};
}

NamedMap mul(const Json& k, const StatePtr&) {
  return {[=](const Nest& x) {
            return each_tensor(x, [&](const at::Tensor& t) { return times(t, k); });
          },
          scalar_checked(k, "mul")};
}

NamedMap square(const Json&, const StatePtr&) {
  return {[](const Nest& x) {
            return each_tensor(x, [](const at::Tensor& t) { return product(t, t); });
          },
          checked([](const TensorSpec& field) { check_numbers(field.dtype, "square"); })};
}

NamedMap cast(const Json& k, const StatePtr&) {
  const at::ScalarType dtype = dtype_of(k.get<std::string>());
  return {[=](const Nest& x) {
            return each_tensor(x, [&](const at::Tensor& t) { return t.to(dtype); });
          },
          each_field([=](const TensorSpec& field) {
            if ((field.dtype == kString) != (dtype == kString)) {
              refuse("cast", dtype_name(field.dtype) + " to " + dtype_name(dtype));
            }
            return TensorSpec{dtype, field.sizes};
          })};
}

// The sizes of a sum, as far as they are known; -1: unknown.
Sizes broadcast(const Sizes& a, const Sizes& b) {
  if (!a || !b) return std::nullopt;
  const Sizes &longer = a->size() < b->size() ? b : a, &shorter = a->size() < b->size() ? a : b;
  Sizes sum = longer;
  const std::size_t lead = longer->size() - shorter->size();
  for (std::size_t i = 0; i < shorter->size(); ++i) {
    std::int64_t& size = (*sum)[lead + i];
    const std::int64_t other = (*shorter)[i];
    if (size == 1 || (size < 0 && other > 1)) size = other;
    if (size >= 0 && other >= 0 && other != 1 && other != size) {
      refuse("sum_pair", std::to_string(size) + " and " + std::to_string(other) + " in one place");
    }
  }
  return sum;
}

NamedMap sum_pair(const Json&, const StatePtr&) {
  const auto parts = [](const Nest& x) -> const Nest::Items& {
    if (x.kind() != Nest::Kind::tuple || x.items().size() != 2) refuse("sum_pair", x.structure());
    return x.items();
  };
  return {[=](const Nest& x) {
            const Nest::Items& pair = parts(x);
            return Nest(sum_of(pair[0].tensor(), pair[1].tensor()));
          },
          [=](const ElementSpec& input) {
            const ElementSpec a = part_of(input, parts(input.structure)[0]);
            const ElementSpec b = part_of(input, parts(input.structure)[1]);
            if (a.fields.size() != 1 || b.fields.size() != 1 ||
                a.fields[0].dtype != b.fields[0].dtype) {
              refuse("sum_pair", input.to_string());
            }
            ElementSpec sum = a;
            sum.fields[0].sizes = broadcast(a.fields[0].sizes, b.fields[0].sizes);
            return sum;
          }};
}

// --- structure ----------------------------------------------------------------------------------

// A map that only rearranges leaves.
NamedMap rearranging(Call call) { return {call, shaped_by(call)}; }

const Nest& item_of(const Nest& x, std::size_t index, const std::string& name) {
  const bool is_sequence = x.kind() == Nest::Kind::tuple || x.kind() == Nest::Kind::list;
  if (!is_sequence || index >= x.items().size()) refuse(name, x.structure());
  return x.items()[index];
}

NamedMap id(const Json&, const StatePtr&) {
  return {[](const Nest& x) { return x; }, same()};
}

NamedMap first(const Json&, const StatePtr&) {
  return rearranging([](const Nest& x) { return item_of(x, 0, "first"); });
}

NamedMap second(const Json&, const StatePtr&) {
  return rearranging([](const Nest& x) { return item_of(x, 1, "second"); });
}

NamedMap swap(const Json&, const StatePtr&) {
  return rearranging([](const Nest& x) {
    return Nest::tuple({item_of(x, 1, "swap"), item_of(x, 0, "swap")});
  });
}

NamedMap dict(const Json& k, const StatePtr&) {
  const auto key = k.get<std::string>();
  return rearranging([=](const Nest& x) { return Nest::map({{key, x}}); });
}

NamedMap get(const Json& k, const StatePtr&) {
  return rearranging([=](const Nest& x) -> Nest {
    if (k.is_number_integer()) return item_of(x, k.get<std::size_t>(), "get");
    const auto key = k.get<std::string>();
    if (x.kind() != Nest::Kind::map || !x.entries().contains(key)) refuse("get", x.structure());
    return x.entries().at(key);
  });
}

// (x, x+k) and {a: x, b: {c: x+1}}: arranges x and the sum of x and k.
NamedMap with_sum(const Json& k, std::function<Nest(Nest x, Nest sum)> arrange) {
  const NamedMap sum = add(k, nullptr);
  return {[=](const Nest& x) { return arrange(x, sum.call(x)); },
          [=](const ElementSpec& input) {
            sum.output(input);  // refuses values to which k cannot be added
            return part_of(input, arrange(input.structure, input.structure));
          }};
}

NamedMap pair(const Json& k, const StatePtr&) {
  return with_sum(k.is_null() ? Json(1) : k, [](Nest x, Nest sum) {
    return Nest::tuple({std::move(x), std::move(sum)});
  });
}

NamedMap nest_ab(const Json&, const StatePtr&) {
  return with_sum(1, [](Nest x, Nest sum) {
    return Nest::map({{"a", std::move(x)}, {"b", Nest::map({{"c", std::move(sum)}})}});
  });
}

// --- shapes -------------------------------------------------------------------------------------

Output scalar_only(const std::string& name, std::vector<std::int64_t> sizes) {
  return each_field([=](const TensorSpec& field) {
    if (field.dtype == kString || !field.sizes || !field.sizes->empty()) {
      refuse(name, field.to_string());
    }
    return TensorSpec{field.dtype, sizes};
  });
}

at::Tensor filled(const at::Tensor& x, std::vector<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) {
    COHORT_CHECK(size >= 0, ErrorCode::invalid_argument, "expected a size >= 0, got ", size);
  }
  return at::full(sizes, x.item(), x.options());
}

NamedMap fill(const Json&, const StatePtr&) {
  return {[](const Nest& x) {
            return each_tensor(
                x, [](const at::Tensor& t) { return filled(t, {integer_of(t, "fill")}); });
          },
          scalar_only("fill", {-1})};
}

NamedMap ones_by(const Json& k, const StatePtr&) {
  const auto rows = k.get<std::int64_t>();
  return {[=](const Nest& x) {
            return each_tensor(x, [&](const at::Tensor& t) {
              return filled(t, {rows, integer_of(t, "ones_by")});
            });
          },
          scalar_only("ones_by", {rows, -1})};
}

NamedMap vec(const Json& k, const StatePtr&) {
  const auto copies = k.get<std::int64_t>();
  return {[=](const Nest& x) {
            return each_tensor(x, [&](const at::Tensor& t) -> at::Tensor {
              const std::vector<at::Tensor> rows(static_cast<std::size_t>(copies), t);
              if (!StringTensor::is(t)) return t.expand(prepended(copies, t.sizes())).contiguous();
              if (copies > 0) return StringTensor::stack(rows);
              return StringTensor(prepended(0, t.sizes()), std::span<const std::string>());
            });
          },
          each_field([=](const TensorSpec& field) {
            if (!field.sizes) return field;
            return TensorSpec{field.dtype, prepended(copies, *field.sizes)};
          })};
}

// --- errors, strings, counting ------------------------------------------------------------------

NamedMap failing(std::function<bool(const at::Tensor&)> fails, ErrorCode code) {
  return {[=](const Nest& x) {
            for (const at::Tensor& leaf : x.flatten_tensors()) {
              if (fails(leaf)) throw Error(code, "[conformance.fail] the case asks for this error");
            }
            return x;
          },
          same()};
}

NamedMap fail_at(const Json& k, const StatePtr&) {
  return failing([=](const at::Tensor& x) { return has_value(x, k); }, ErrorCode::invalid_argument);
}

NamedMap out_of_range_at(const Json& k, const StatePtr&) {
  return failing([=](const at::Tensor& x) { return has_value(x, k); }, ErrorCode::out_of_range);
}

NamedMap fail_nan(const Json&, const StatePtr&) {
  return failing(
      [](const at::Tensor& x) { return !StringTensor::is(x) && at::isnan(x).any().item<bool>(); },
      ErrorCode::invalid_argument);
}

NamedMap file_name(const Json& k, const StatePtr& state) {
  const auto pattern = k.get<std::string>();
  const auto name_of_number = [=](std::int64_t number) {
    std::string name = pattern;
    const std::size_t at = name.find("{}");
    if (at != std::string::npos) name.replace(at, 2, std::to_string(number));
    return state->directory->path_of(name);
  };
  return {[=](const Nest& x) {
            return each_tensor(x, [&](const at::Tensor& t) -> at::Tensor {
              const at::Tensor numbers = t.to(at::ScalarType::Long).contiguous();
              std::vector<std::string> names;
              for (std::int64_t i = 0; i < numbers.numel(); ++i) {
                names.push_back(name_of_number(numbers.data_ptr<std::int64_t>()[i]));
              }
              return StringTensor(t.sizes().vec(), names);
            });
          },
          each_field([](const TensorSpec& field) {
            check_numbers(field.dtype, "file_name");
            return TensorSpec{kString, field.sizes};
          })};
}

// As tf.strings.to_number: ignores blanks around the number, and accepts a sign.
std::int64_t parsed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  std::string_view number = text;
  number.remove_prefix(std::min(number.find_first_not_of(kBlanks), number.size()));
  number.remove_suffix(number.size() - (number.find_last_not_of(kBlanks) + 1));
  if (number.size() > 1 && number[0] == '+' && number[1] != '-') number.remove_prefix(1);
  std::int64_t value = 0;
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.empty() || result.ec != std::errc() || result.ptr != number.data() + number.size()) {
    refuse("parse_int", "'" + std::string(text) + "'");
  }
  return value;
}

NamedMap parse_int(const Json&, const StatePtr&) {
  return {[](const Nest& x) {
            return each_tensor(x, [](const at::Tensor& t) {
              const StringTensor texts = StringTensor::of(t);
              at::Tensor numbers = at::full(texts.sizes(), 0, at::ScalarType::Long);
              for (std::int64_t i = 0; i < texts.numel(); ++i) {
                numbers.data_ptr<std::int64_t>()[i] = parsed(texts[i]);
              }
              return numbers;
            });
          },
          each_field([](const TensorSpec& field) {
            if (field.dtype != kString) refuse("parse_int", field.to_string());
            return TensorSpec{at::ScalarType::Long, field.sizes};
          })};
}

NamedMap count_calls(const Json&, const StatePtr& state) {
  return {[=](const Nest& x) {
            ++state->calls;
            return x;
          },
          same()};
}

}  // namespace

NamedMap named_map(const std::string& name, const Json& arg,
                   const std::shared_ptr<CaseState>& state) {
  using Make = NamedMap (*)(const Json&, const StatePtr&);
  static const std::map<std::string, Make> makers = {{"id", id},
                                                     {"add", add},
                                                     {"mul", mul},
                                                     {"square", square},
                                                     {"cast", cast},
                                                     {"pair", pair},
                                                     {"nest_ab", nest_ab},
                                                     {"dict", dict},
                                                     {"get", get},
                                                     {"sum_pair", sum_pair},
                                                     {"swap", swap},
                                                     {"first", first},
                                                     {"second", second},
                                                     {"fill", fill},
                                                     {"vec", vec},
                                                     {"ones_by", ones_by},
                                                     {"fail_at", fail_at},
                                                     {"fail_nan", fail_nan},
                                                     {"out_of_range_at", out_of_range_at},
                                                     {"file_name", file_name},
                                                     {"parse_int", parse_int},
                                                     {"count_calls", count_calls}};
  const auto found = makers.find(name);
  if (found == makers.end()) throw CaseFault("unknown map function '" + name + "'");
  return found->second(arg, state);
}

}  // namespace cohort::conformance
