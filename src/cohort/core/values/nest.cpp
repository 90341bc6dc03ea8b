// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/nest.h"

#include <array>

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

constexpr std::array<std::string_view, 10> kKindNames = {"null", "tensor", "int",  "float", "bool",
                                                         "text", "handle", "list", "tuple", "map"};

[[noreturn]] void throw_kind(std::string_view expected, Nest::Kind actual) {
  const bool has_items = actual == Nest::Kind::list || actual == Nest::Kind::tuple;
  internal::throw_error(ErrorCode::invalid_argument, "[core.nest] expected ", expected, ", got ",
                        name_of(actual),
                        actual == Nest::Kind::map ? "; take one of its values with entry(key)"
                        : has_items               ? "; take one of its items()"
                                    : "; ask kind() first where several kinds may come");
}

// The content of a nest of the kind `expected`, which is that of a T.
template <class T, class Variant>
const T& content(const Variant& value, Nest::Kind expected) {
  if (const auto* found = std::get_if<T>(&value)) return *found;
  throw_kind(name_of(expected), static_cast<Nest::Kind>(value.index()));
}

// "tuple of 2", "map of {a, b}", "tensor".
std::string describe(const Nest& nest) {
  std::string text(name_of(nest.kind()));
  if (nest.kind() == Nest::Kind::map) {
    text += " of {";
    for (const auto& [key, value] : nest.entries()) {
      if (text.back() != '{') text += ", ";
      text += key;
    }
    return text + "}";
  }
  return nest.is_leaf() ? text : text + " of " + std::to_string(nest.items().size());
}

bool has_same_keys(const Nest::Map& left, const Nest::Map& right) {
  if (left.size() != right.size()) return false;
  for (auto l = left.begin(), r = right.begin(); l != left.end(); ++l, ++r) {
    if (l->first != r->first) return false;
  }
  return true;
}

// Whether the two agree at this level; their children are not compared.
bool agrees(const Nest& expected, const Nest& actual, Nest::LeafKinds leaf_kinds) {
  if (expected.is_leaf() && actual.is_leaf()) {
    return leaf_kinds == Nest::LeafKinds::any || expected.kind() == actual.kind();
  }
  if (expected.kind() != actual.kind()) return false;
  if (expected.kind() == Nest::Kind::map) {
    return has_same_keys(expected.entries(), actual.entries());
  }
  return expected.items().size() == actual.items().size();
}

struct Comparison {
  std::string_view what;
  Nest::LeafKinds leaf_kinds;
  std::string path;

  void run(const Nest& expected, const Nest& actual) {
    if (!agrees(expected, actual, leaf_kinds)) {
      internal::throw_error(ErrorCode::invalid_argument, what, " differs in structure at ",
                            path.empty() ? "the root" : path, ": expected ", describe(expected),
                            ", got ", describe(actual));
    }
    if (expected.is_leaf()) return;
    const std::size_t length = path.size();
    if (expected.kind() == Nest::Kind::map) {
      for (const auto& [key, value] : expected.entries()) {
        path.append("['").append(key).append("']");
        run(value, actual.entries().at(key));
        path.resize(length);
      }
      return;
    }
    for (std::size_t i = 0; i < expected.items().size(); ++i) {
      path.append("[").append(std::to_string(i)).append("]");
      run(expected.items()[i], actual.items()[i]);
      path.resize(length);
    }
  }
};

template <class Visit>
void visit_leaves(const Nest& nest, const Visit& visit) {
  if (nest.is_leaf()) {
    visit(nest);
  } else if (nest.kind() == Nest::Kind::map) {
    for (const auto& [key, value] : nest.entries()) visit_leaves(value, visit);
  } else {
    for (const Nest& item : nest.items()) visit_leaves(item, visit);
  }
}

std::string structure_of_items(const Nest::Items& items, char open, char close) {
  std::string text(1, open);
  for (const Nest& item : items) {
    if (text.size() > 1) text += ", ";
    text += item.structure();
  }
  return text += close;
}

}  // namespace

Nest::Nest(at::Tensor tensor) : value_(std::move(tensor)) {}
Nest::Nest(std::int64_t value) : value_(value) {}
Nest::Nest(double value) : value_(value) {}
Nest::Nest(std::string value) : value_(std::move(value)) {}
Nest::Nest(std::shared_ptr<Handle> handle) : value_(std::move(handle)) {
  COHORT_CHECK(
      std::get<std::shared_ptr<Handle>>(value_) != nullptr, ErrorCode::invalid_argument,
      "[core.nest] expected a handle, got a null pointer; a nest without a value is Nest()");
}

Nest Nest::list(Items items) {
  Nest nest;
  nest.value_ = List{std::move(items)};
  return nest;
}

Nest Nest::tuple(Items items) {
  Nest nest;
  nest.value_ = Tuple{std::move(items)};
  return nest;
}

Nest Nest::map(Map entries) {
  Nest nest;
  nest.value_ = std::move(entries);
  return nest;
}

Nest::Kind Nest::kind() const { return static_cast<Kind>(value_.index()); }

bool Nest::is_leaf() const { return kind() < Kind::list; }

const at::Tensor& Nest::tensor() const { return content<at::Tensor>(value_, Kind::tensor); }

std::int64_t Nest::fitting_unsigned(std::uint64_t value) {
  COHORT_CHECK(std::in_range<std::int64_t>(value), ErrorCode::invalid_argument,
               "[core.nest] expected an integer below 2^63, got ", value,
               "; pass a negative number as std::int64_t, not as std::size_t");
  return static_cast<std::int64_t>(value);
}

std::int64_t Nest::integer() const { return content<std::int64_t>(value_, Kind::integer); }

double Nest::real() const { return content<double>(value_, Kind::real); }

bool Nest::boolean() const { return content<bool>(value_, Kind::boolean); }

const std::string& Nest::text() const { return content<std::string>(value_, Kind::text); }

const std::shared_ptr<Handle>& Nest::handle() const {
  return content<std::shared_ptr<Handle>>(value_, Kind::handle);
}

const Nest::Items& Nest::items() const& {
  if (const auto* value = std::get_if<List>(&value_)) return value->items;
  if (const auto* value = std::get_if<Tuple>(&value_)) return value->items;
  throw_kind("list or tuple", kind());
}

const Nest::Map& Nest::entries() const& { return content<Map>(value_, Kind::map); }

const Nest& Nest::entry(std::string_view key) const& {
  const Map& map = entries();
  const auto found = map.find(std::string(key));
  if (found != map.end()) return found->second;
  std::string known;
  std::vector<std::string> keys;
  for (const auto& [name, value] : map) {
    known += (known.empty() ? "'" : ", '") + name + "'";
    keys.push_back(name);
  }
  internal::throw_error(ErrorCode::not_found, "[core.nest] expected ",
                        keys.empty() ? "no key, as the map is empty" : "one of the keys " + known,
                        ", got '", key, "'", did_you_mean(key, keys));
}

std::vector<Nest> Nest::flatten() const {
  std::vector<Nest> leaves;
  visit_leaves(*this, [&](const Nest& leaf) { leaves.push_back(leaf); });
  return leaves;
}

std::vector<at::Tensor> Nest::flatten_tensors() const {
  std::vector<at::Tensor> leaves;
  visit_leaves(*this, [&](const Nest& leaf) {
    if (leaf.is_tensor()) leaves.push_back(leaf.tensor());
  });
  return leaves;
}

Nest Nest::map_leaves(const std::function<Nest(const Nest&)>& fn) const {
  if (is_leaf()) return fn(*this);
  if (kind() == Kind::map) {
    Map mapped;
    for (const auto& [key, value] : entries()) mapped.emplace(key, value.map_leaves(fn));
    return map(std::move(mapped));
  }
  Items mapped;
  mapped.reserve(items().size());
  for (const Nest& item : items()) mapped.push_back(item.map_leaves(fn));
  return kind() == Kind::list ? list(std::move(mapped)) : tuple(std::move(mapped));
}

std::string Nest::structure() const {
  switch (kind()) {
    case Kind::list:
      return structure_of_items(items(), '[', ']');
    case Kind::tuple:
      return structure_of_items(items(), '(', ')');
    case Kind::map:
      break;
    default:
      return std::string(name_of(kind()));
  }
  std::string text = "{";
  for (const auto& [key, value] : entries()) {
    if (text.size() > 1) text += ", ";
    text += key + ": " + value.structure();
  }
  return text += '}';
}

void Nest::check_same_structure(const Nest& expected, const Nest& actual, std::string_view what,
                                Nest::LeafKinds leaf_kinds) {
  Comparison{what, leaf_kinds, {}}.run(expected, actual);
}

std::string_view name_of(Nest::Kind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "unknown";
}

}  // namespace cohort
