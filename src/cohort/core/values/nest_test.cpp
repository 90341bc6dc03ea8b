// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/nest.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::throws_error;

class FakeHandle final : public Handle {
 public:
  std::string_view handle_kind() const override { return "fake"; }
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "nothing thrown";
}

std::string difference(const Nest& expected, const Nest& actual,
                       Nest::LeafKinds leaf_kinds = Nest::LeafKinds::any) {
  return message_of([&] { Nest::check_same_structure(expected, actual, "[t.t] it", leaf_kinds); });
}

// A pointer became the bool true.
TEST(Nest, DoesNotTakeAPointer) {
  static_assert(!std::is_constructible_v<Nest, int*>);
  static_assert(!std::is_constructible_v<Nest, const void*>);
  static_assert(!std::is_constructible_v<Nest, std::unique_ptr<int>>);
  static_assert(!std::is_constructible_v<Nest, void (*)()>);
  static_assert(!std::is_constructible_v<Nest, std::nullptr_t>);
  const auto function = [] {};  // converts to a pointer
  static_assert(!std::is_constructible_v<Nest, decltype(function)>);
  char text[] = "abc";
  EXPECT_EQ(Nest(text).text(), "abc");
  EXPECT_EQ(Nest(&text[0]).text(), "abc");
  EXPECT_TRUE(Nest(true).boolean());
}

// The loop read items of a nest that was destroyed already.
TEST(Nest, ALoopMayRunOverTheItemsOfATemporary) {
  std::int64_t sum = 0;
  for (const Nest& item : Nest::list({1, 2}).items()) sum += item.integer();
  for (const auto& [key, value] : Nest::map({{"a", 4}}).entries()) sum += value.integer();
  EXPECT_EQ(sum, 7);
}

// The message showed -1 as 18446744073709551615 and did not explain that number.
TEST(Nest, SaysHowToPassANegativeNumber) {
  EXPECT_THAT(message_of([] { return Nest(std::size_t{0} - 1); }),
              HasSubstr("below 2^63, got 18446744073709551615; pass a negative number as "
                        "std::int64_t, not as std::size_t"));
}

struct KindRow {
  Nest nest;
  Nest::Kind kind;
  std::string name;
};

std::vector<KindRow> every_kind() {
  return {{Nest(), Nest::Kind::null, "null"},
          {at::ones({2}), Nest::Kind::tensor, "tensor"},
          {3, Nest::Kind::integer, "int"},
          {3.5, Nest::Kind::real, "float"},
          {true, Nest::Kind::boolean, "bool"},
          {"x", Nest::Kind::text, "text"},
          {std::shared_ptr<Handle>(std::make_shared<FakeHandle>()), Nest::Kind::handle, "handle"},
          {Nest::list({}), Nest::Kind::list, "list"},
          {Nest::tuple({}), Nest::Kind::tuple, "tuple"},
          {Nest::map({}), Nest::Kind::map, "map"}};
}

TEST(Nest, KnowsTheKindOfItsValue) {
  for (const KindRow& row : every_kind()) {
    EXPECT_EQ(row.nest.kind(), row.kind);
    EXPECT_EQ(name_of(row.kind), row.name);
    EXPECT_EQ(row.nest.is_leaf(), row.kind < Nest::Kind::list) << row.name;
  }
}

TEST(Nest, GivesItsContentBack) {
  EXPECT_EQ(Nest(7).integer(), 7);
  EXPECT_EQ(Nest(7.5).real(), 7.5);
  EXPECT_FALSE(Nest(false).boolean());
  EXPECT_EQ(Nest("a").text(), "a");
  EXPECT_EQ(Nest(at::ones({3})).tensor().numel(), 3);
  EXPECT_EQ(Nest::list({1, 2}).items().at(1).integer(), 2);
  EXPECT_EQ(Nest::map({{"a", 1}}).entries().at("a").integer(), 1);
  EXPECT_EQ(every_kind()[6].nest.handle()->handle_kind(), "fake");
}

// Users saw "map::at".
TEST(Nest, AnEntryThatIsMissingIsNamedWithThoseThatExist) {
  const Nest map = Nest::map({{"image", 1}, {"label", 2}});
  EXPECT_EQ(map.entry("label").integer(), 2);
  EXPECT_THAT([&] { map.entry("lable"); },
              throws_error(ErrorCode::not_found,
                           "[core.nest] expected one of the keys 'image', 'label', got 'lable'; "
                           "did you mean 'label'?"));
  EXPECT_THAT([] { Nest::map({}).entry("a"); },
              throws_error(ErrorCode::not_found, "expected no key, as the map is empty, got 'a'"));
  EXPECT_THAT([] { Nest(1).entry("a"); },
              throws_error(ErrorCode::invalid_argument, "expected map, got int"));
}

struct Accessor {
  std::string expected;
  std::vector<Nest::Kind> accepted;
  std::function<void(const Nest&)> read;
};

std::vector<Accessor> every_accessor() {
  using Kind = Nest::Kind;
  return {{"tensor", {Kind::tensor}, [](const Nest& n) { n.tensor(); }},
          {"int", {Kind::integer}, [](const Nest& n) { n.integer(); }},
          {"float", {Kind::real}, [](const Nest& n) { n.real(); }},
          {"bool", {Kind::boolean}, [](const Nest& n) { n.boolean(); }},
          {"text", {Kind::text}, [](const Nest& n) { n.text(); }},
          {"handle", {Kind::handle}, [](const Nest& n) { n.handle(); }},
          {"list or tuple", {Kind::list, Kind::tuple}, [](const Nest& n) { n.items(); }},
          {"map", {Kind::map}, [](const Nest& n) { n.entries(); }}};
}

TEST(Nest, NamesBothKindsWhenAskedForAnotherOne) {
  for (const Accessor& accessor : every_accessor()) {
    for (const KindRow& row : every_kind()) {
      const std::string message = message_of([&] { accessor.read(row.nest); });
      const bool is_accepted = ::testing::Value(accessor.accepted, ::testing::Contains(row.kind));
      EXPECT_EQ(message == "nothing thrown", is_accepted) << accessor.expected << row.name;
      if (is_accepted) continue;
      EXPECT_THAT(message, HasSubstr("expected " + accessor.expected + ", got " + row.name));
    }
  }
}

TEST(Nest, RefusesANullHandle) {
  EXPECT_THAT(message_of([] { Nest(std::shared_ptr<Handle>()); }), HasSubstr("null pointer"));
}

TEST(Nest, FlattensByPositionAndBySortedKey) {
  const Nest nest = Nest::tuple({1, Nest::map({{"b", 3}, {"a", Nest::list({2})}}), Nest()});
  const std::vector<Nest> leaves = nest.flatten();
  ASSERT_EQ(leaves.size(), 4U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(leaves[i].integer(), i + 1);
  EXPECT_TRUE(leaves[3].is_null());
}

TEST(Nest, FlattensTensorsAloneAndSharesThem) {
  const at::Tensor tensor = at::arange(3);
  const Nest nest = Nest::list({1, Nest::map({{"x", tensor}}), "t"});
  const std::vector<at::Tensor> leaves = nest.flatten_tensors();
  ASSERT_EQ(leaves.size(), 1U);
  EXPECT_TRUE(leaves[0].is_same(tensor));
}

TEST(Nest, MapsLeavesAndKeepsTheStructure) {
  const Nest nest = Nest::tuple({1, Nest::list({2}), Nest::map({{"k", 3}}), Nest::tuple({})});
  const Nest doubled = nest.map_leaves([](const Nest& leaf) { return 2 * leaf.integer(); });
  EXPECT_EQ(doubled.structure(), "(int, [int], {k: int}, ())");
  EXPECT_EQ(doubled.items()[2].entries().at("k").integer(), 6);
}

TEST(Nest, WritesItsStructure) {
  const Nest nest = Nest::tuple({at::ones({2}), Nest::map({{"b", Nest::list({"x"})}, {"a", 1}})});
  EXPECT_EQ(nest.structure(), "(tensor, {a: int, b: [text]})");
  EXPECT_EQ(Nest::list({}).structure(), "[]");
}

TEST(SameStructure, HoldsForOtherValues) {
  EXPECT_EQ(difference(1, 1), "nothing thrown");
  EXPECT_EQ(difference(1, 2), "nothing thrown");
  EXPECT_EQ(difference(Nest::list({1, at::ones({2})}), Nest::list({5, at::ones({9})})),
            "nothing thrown");
}

TEST(SameStructure, LooksAtLeafKindsWhenAsked) {
  EXPECT_EQ(difference(Nest::list({1}), Nest::list({"x"})), "nothing thrown");
  EXPECT_THAT(difference(Nest::list({1}), Nest::list({"x"}), Nest::LeafKinds::same),
              HasSubstr("at [0]: expected int, got text"));
}

TEST(SameStructure, NamesThePathOfTheDifference) {
  const Nest expected = Nest::tuple({1, Nest::map({{"b", Nest::tuple({1, 2})}})});
  const Nest actual = Nest::tuple({1, Nest::map({{"b", at::ones({2})}})});
  EXPECT_THAT(
      difference(expected, actual),
      AllOf(HasSubstr("[t.t] it"), HasSubstr("at [1]['b']: expected tuple of 2, got tensor")));
}

TEST(SameStructure, NamesTheRootWhenThatDiffers) {
  EXPECT_THAT(difference(Nest::list({1}), Nest::tuple({1})),
              HasSubstr("at the root: expected list of 1, got tuple of 1"));
}

TEST(SameStructure, NamesBothLengthsAndBothKeySets) {
  EXPECT_THAT(difference(Nest::list({1}), Nest::list({1, 2})),
              HasSubstr("expected list of 1, got list of 2"));
  EXPECT_THAT(difference(Nest::map({{"a", 1}, {"b", 2}}), Nest::map({{"a", 1}, {"c", 2}})),
              HasSubstr("expected map of {a, b}, got map of {a, c}"));
  EXPECT_THAT(difference(Nest::map({{"a", 1}}), Nest::map({})),
              HasSubstr("expected map of {a}, got map of {}"));
}

TEST(SameStructure, GoesOnAfterASiblingThatAgrees) {
  const Nest expected = Nest::list({Nest::list({1}), Nest::list({1})});
  const Nest actual = Nest::list({Nest::list({1}), Nest::list({})});
  EXPECT_THAT(difference(expected, actual), HasSubstr("at [1]: expected list of 1, got list of 0"));
}

}  // namespace
}  // namespace cohort
