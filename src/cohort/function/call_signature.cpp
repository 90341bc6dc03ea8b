// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/call_signature.h"

#include <algorithm>
#include <bit>
#include <iomanip>
#include <sstream>

#include "cohort/core/random.h"

namespace cohort::function {
namespace {

// A program that has one frozen is not the program of the other.
bool has_same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool is_same_handle(const std::shared_ptr<Handle>& pattern, const std::shared_ptr<Handle>& handle) {
  const auto* resource = dynamic_cast<const ResourcePattern*>(pattern.get());
  return resource == nullptr ? pattern == handle : resource->matches(*handle);
}

bool is_same_nest(const Nest& pattern, const Nest& nest) {
  if (pattern.kind() != nest.kind()) return false;
  if (nest.is_leaf()) return is_same_leaf(pattern, nest);
  if (nest.kind() == Nest::Kind::map) {
    return std::equal(pattern.entries().begin(), pattern.entries().end(), nest.entries().begin(),
                      nest.entries().end(), [](const auto& a, const auto& b) {
                        return a.first == b.first && is_same_nest(a.second, b.second);
                      });
  }
  return std::equal(pattern.items().begin(), pattern.items().end(), nest.items().begin(),
                    nest.items().end(), is_same_nest);
}

std::uint64_t hash_of_tensor(const at::Tensor& tensor) {
  std::uint64_t hash = mix_seed(static_cast<std::uint64_t>(tensor.scalar_type()),
                                static_cast<std::uint64_t>(tensor.layout()));
  hash = mix_seed(hash, tensor.requires_grad() ? 1U : 0U);
  for (const std::int64_t size : tensor.sizes()) hash = mix_seed(hash, std::uint64_t(size));
  return hash;
}

// The hash of the parts that is_same_nest() compares, except for handles.
std::uint64_t hash_of_nest(const Nest& nest) {
  auto hash = static_cast<std::uint64_t>(nest.kind());
  switch (nest.kind()) {
    case Nest::Kind::tensor:
      return mix_seed(hash, hash_of_tensor(nest.tensor()));
    case Nest::Kind::integer:
      return mix_seed(hash, static_cast<std::uint64_t>(nest.integer()));
    case Nest::Kind::real:
      return mix_seed(hash, std::bit_cast<std::uint64_t>(nest.real()));
    case Nest::Kind::boolean:
      return mix_seed(hash, nest.boolean() ? 1U : 0U);
    case Nest::Kind::text:
      return mix_seed(hash, nest.text());
    case Nest::Kind::map:
      for (const auto& [key, value] : nest.entries())
        hash = mix_seed(mix_seed(hash, key), hash_of_nest(value));
      return hash;
    case Nest::Kind::list:
    case Nest::Kind::tuple:
      for (const Nest& item : nest.items()) hash = mix_seed(hash, hash_of_nest(item));
      return hash;
    default:
      return hash;
  }
}

// A copy: before a later trace the caller may overwrite or free theirs, or give it another shape.
at::Tensor example_of(const at::Tensor& tensor) {
  at::Tensor example = tensor.detach().clone();
  if (tensor.requires_grad()) example.requires_grad_();
  return example;
}

// As flatten(), without copies.
void bind_nest(const Nest& nest, BoundArguments& bound) {
  switch (nest.kind()) {
    case Nest::Kind::tensor:
      return bound.tensors.push_back(nest.tensor());
    case Nest::Kind::handle:
      return bound.resources.push_back(nest);
    case Nest::Kind::map:
      for (const auto& [key, value] : nest.entries()) bind_nest(value, bound);
      return;
    case Nest::Kind::list:
    case Nest::Kind::tuple:
      for (const Nest& item : nest.items()) bind_nest(item, bound);
      return;
    default:
      return;
  }
}

std::string text_of_value(const Nest& leaf) {
  std::ostringstream text;
  text << std::setprecision(17);
  if (leaf.kind() == Nest::Kind::real) {
    text << leaf.real();
  } else if (leaf.kind() == Nest::Kind::integer) {
    text << leaf.integer();
  } else if (leaf.kind() == Nest::Kind::boolean) {
    text << (leaf.boolean() ? "true" : "false");
  } else {
    text << "another " << cohort::name_of(leaf.kind());
  }
  return text.str();
}

// One spec alone, or "(int64[8, 5], float32[8])".
std::string text_of_specs(const std::vector<TensorSpec>& specs) {
  if (specs.size() == 1) return specs.front().to_string();
  std::string text;
  for (const TensorSpec& spec : specs) text += (text.empty() ? "" : ", ") + spec.to_string();
  return "(" + text + ")";
}

// Then drop_remainder, which only leaves out a batch of fewer rows, makes them no more alike.
bool differ_after_the_rows(const std::vector<TensorSpec>& a, const std::vector<TensorSpec>& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const std::vector<std::int64_t>& before = *a[i].sizes;
    const std::vector<std::int64_t>& now = *b[i].sizes;
    if (before.size() != now.size() || before.empty()) continue;
    if (!std::equal(before.begin() + 1, before.end(), now.begin() + 1)) return true;
  }
  return false;
}

std::string difference_of_leaves(const std::vector<Nest>& before, const std::vector<Nest>& now) {
  const auto specs_among = [](const std::vector<Nest>& leaves) {
    std::vector<TensorSpec> specs;
    for (const Nest& leaf : leaves)
      if (leaf.is_tensor()) specs.push_back(TensorSpec::of(leaf.tensor()));
    return specs;
  };
  const std::vector<TensorSpec> was = specs_among(before);
  const std::vector<TensorSpec> is = specs_among(now);
  return was.size() == is.size() && !was.empty() && was != is
             ? difference(was, is)
             : " had other shapes, types or parts: pad, or batch with drop_remainder";
}

}  // namespace

bool is_same_leaf(const Nest& pattern, const Nest& leaf) {
  if (pattern.kind() != leaf.kind()) return false;
  switch (leaf.kind()) {
    case Nest::Kind::tensor:
      return pattern.tensor().scalar_type() == leaf.tensor().scalar_type() &&
             pattern.tensor().sizes() == leaf.tensor().sizes() &&
             pattern.tensor().layout() == leaf.tensor().layout() &&
             pattern.tensor().requires_grad() == leaf.tensor().requires_grad();
    case Nest::Kind::integer:
      return pattern.integer() == leaf.integer();
    case Nest::Kind::real:
      return has_same_bits(pattern.real(), leaf.real());
    case Nest::Kind::boolean:
      return pattern.boolean() == leaf.boolean();
    case Nest::Kind::text:
      return pattern.text() == leaf.text();
    case Nest::Kind::handle:
      return is_same_handle(pattern.handle(), leaf.handle());
    default:
      return true;
  }
}

std::vector<TensorSpec> specs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& tensor : tensors) specs.push_back(TensorSpec::of(tensor));
  return specs;
}

std::string difference(const std::vector<TensorSpec>& before, const std::vector<TensorSpec>& now) {
  const std::string shapes = " was " + text_of_specs(before) + " and is now " + text_of_specs(now);
  return differ_after_the_rows(before, now)
             ? shapes + ": pad to one shape, as padded_batch() does with padded_shapes"
             : shapes + ": pad to one shape, or batch with drop_remainder";
}

CallSignature::CallSignature(std::span<const Nest> arguments, const TracingMode& mode,
                             const PatternOf& pattern_of)
    : mode_(mode) {
  for (const Nest& argument : arguments) {
    pattern_.push_back(argument.map_leaves([&](const Nest& leaf) -> Nest {
      if (leaf.is_tensor()) return example_of(leaf.tensor());
      if (leaf.kind() != Nest::Kind::handle) return leaf;
      return std::shared_ptr<Handle>(pattern_of(*leaf.handle()));
    }));
  }
}

bool CallSignature::matches(std::span<const Nest> arguments, const TracingMode& mode) const {
  return mode_ == mode && std::equal(pattern_.begin(), pattern_.end(), arguments.begin(),
                                     arguments.end(), is_same_nest);
}

std::size_t CallSignature::hash_of(std::span<const Nest> arguments) {
  std::uint64_t hash = arguments.size();
  for (const Nest& argument : arguments) hash = mix_seed(hash, hash_of_nest(argument));
  return hash;
}

std::string CallSignature::difference_from(const CallSignature& earlier) const {
  for (std::size_t i = 0; i < pattern_.size() && i < earlier.pattern_.size(); ++i) {
    if (is_same_nest(earlier.pattern_[i], pattern_[i])) continue;
    const std::vector<Nest> now = pattern_[i].flatten();
    const std::vector<Nest> before = earlier.pattern_[i].flatten();
    const std::string argument = "argument " + std::to_string(i);
    for (std::size_t leaf = 0; leaf < now.size() && leaf < before.size(); ++leaf) {
      if (is_same_leaf(before[leaf], now[leaf])) continue;
      if (before[leaf].is_tensor() || before[leaf].kind() != now[leaf].kind()) break;
      return argument + " was " + text_of_value(before[leaf]) + " and is now " +
             text_of_value(now[leaf]) +
             ": declare it at::Tensor, so that its value is no part of the program "
             "(strategy.function() "
             "takes a tensor then, schedule() also a number)";
    }
    return argument + difference_of_leaves(before, now);
  }
  return mode_ == earlier.mode_ ? "" : "grad mode, autocast or the default dtype was another";
}

BoundArguments bind_arguments(std::span<const Nest> arguments) {
  BoundArguments bound;
  for (const Nest& argument : arguments) bind_nest(argument, bound);
  return bound;
}

}  // namespace cohort::function
