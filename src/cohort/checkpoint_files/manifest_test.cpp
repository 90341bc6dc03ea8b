// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "cohort/core/crc32c.h"
#include "cohort/testing/throws_error.h"

namespace cohort::checkpoint {
namespace {

using testing::throws_error;
using Json = nlohmann::json;

Manifest example_manifest() {
  Manifest manifest{.step = 7,
                    .cohort = "0.1.0",
                    .strategy = "MirroredStrategy",
                    .time = "2026-01-01T00:00:00Z",
                    .generators = {"@generator-0"},
                    .positions = {{"data", "@position/data"}},
                    .values = {{"epoch", "3"}, {"note", "\"ä\""}}};
  const auto add = [&](const std::string& name, const TensorSpec& spec) {
    manifest.tensors[name] = {.spec = spec, .file = "float32.safetensors", .parts = {{0, 2, 5}}};
  };
  const TensorSpec rows{at::kFloat, {{2, 3}}};
  for (const char* name :
       {"w", "w@adam/exp_avg", "w@replica-0", "table", "table@keys", "table@counted-keys",
        "table@counts", "@state-0", "@generator-0", "@position/data"})
    add(name, rows);
  manifest.tensors["step"] = {.spec = {at::kLong, {std::vector<std::int64_t>()}},
                              .file = "int64.safetensors",
                              .parts = {{0, 1, 9}}};
  manifest.variables = {{.name = "w",
                         .spec = rows,
                         .replicas = {"w@replica-0"},
                         .slots = {{"adam", "adam", {"w@adam/exp_avg", "step"}}}},
                        {.name = "table",
                         .spec = rows,
                         .keys = "table@keys",
                         .counted_keys = "table@counted-keys",
                         .counts = "table@counts"}};
  manifest.states = {{"optimizer 'adam' of 'w'", "adam", "adam", "w", "@state-0"}};
  return manifest;
}

std::string with_checksum(Json json) {
  json.erase("crc32c");
  json["crc32c"] = crc32c(json.dump());
  return json.dump();
}

TEST(ManifestTest, ComesBack) {
  const std::string text = encode(example_manifest());
  const Manifest back = parse_manifest(text, "m");
  EXPECT_EQ(encode(back), text);
  EXPECT_EQ(back.variables[0].slots[0].tensors[1], "step");
  EXPECT_TRUE(back.variables[1].is_table());
  EXPECT_EQ(back.values.at("note"), "\"ä\"");
}

TEST(ManifestTest, PartsMayHaveFilesOfTheirOwn) {
  Manifest manifest = example_manifest();
  EXPECT_EQ(Json::parse(encode(manifest))["version"], 1);
  manifest.tensors.at("w").parts = {{0, 1, 5}, {1, 1, 6, "ps-1-float32.safetensors"}};
  const std::string text = encode(manifest);
  EXPECT_EQ(Json::parse(text)["version"], 2);
  EXPECT_EQ(encode(parse_manifest(text, "m")), text);
  manifest.tensors.at("w").parts[1].file = "../w";
  EXPECT_THAT([&] { parse_manifest(encode(manifest), "m"); },
              throws_error(ErrorCode::data_loss, "a file '../w'"));
}

TEST(ManifestTest, ANewerVersionIsNamed) {
  Json json = Json::parse(encode(example_manifest()));
  json["version"] = 3;
  EXPECT_THAT([&] { parse_manifest(with_checksum(json), "m"); },
              throws_error(ErrorCode::unimplemented, "version 2 or older, got 3"));
}

struct Damaged {
  const char* name;
  void (*damage)(Json& json);
};

class DamagedManifestTest : public ::testing::TestWithParam<Damaged> {};

TEST_P(DamagedManifestTest, IsDataLoss) {
  Json json = Json::parse(encode(example_manifest()));
  GetParam().damage(json);
  EXPECT_THAT([&] { parse_manifest(with_checksum(json), "m"); },
              throws_error(ErrorCode::data_loss, "'m'"));
}

INSTANTIATE_TEST_SUITE_P(
    Each, DamagedManifestTest,
    ::testing::Values(
        Damaged{"format", [](Json& json) { json["format"] = "x"; }},
        Damaged{"no_step", [](Json& json) { json.erase("step"); }},
        Damaged{"dtype", [](Json& json) { json["tensors"]["w"]["dtype"] = "float7"; }},
        Damaged{"negative_size", [](Json& json) { json["tensors"]["w"]["shape"] = {-1}; }},
        Damaged{"large_size",
                [](Json& json) { json["tensors"]["w"]["shape"] = {18446744073709551615U}; }},
        Damaged{"folder", [](Json& json) { json["tensors"]["w"]["file"] = "../x"; }},
        Damaged{"hidden", [](Json& json) { json["tensors"]["w"]["file"] = ".x"; }},
        Damaged{"missing_rows",
                [](Json& json) {
                  json["tensors"]["w"]["parts"] = {{0, 1, 5}};
                }},
        Damaged{"a_gap",
                [](Json& json) {
                  json["tensors"]["w"]["parts"] = {{1, 2, 5}};
                }},
        Damaged{"no_rows",
                [](Json& json) {
                  json["tensors"]["w"]["parts"] = {{0, 0, 5}};
                }},
        Damaged{"overflow",
                [](Json& json) {
                  json["tensors"]["w"]["parts"] = {{0, 9223372036854775807, 5},
                                                   {9223372036854775807, 9, 5}};
                }},
        Damaged{"no_tensor", [](Json& json) { json["tensors"].erase("w@adam/exp_avg"); }},
        Damaged{"no_keys", [](Json& json) { json["tensors"].erase("table@keys"); }},
        Damaged{"variables", [](Json& json) { json["variables"] = 3; }},
        Damaged{"positions",
                [](Json& json) {
                  json["positions"] = {{"data", 1}};
                }}),
    [](const auto& each) { return std::string(each.param.name); });

// Members of any kind in any place, with a checksum that fits: an error or a manifest, never worse.
TEST(ManifestTest, AnyTextIsSafe) {
  std::mt19937 random(3);
  const Json whole = Json::parse(encode(example_manifest()));
  const Json others = {nullptr,       true,          -1, 1.5, 18446744073709551615U, "x", {1, 2},
                       Json::array(), Json::object()};
  int refused = 0;
  for (int i = 0; i < 3'000; ++i) {
    const Json flat = whole.flatten();
    auto place = flat.begin();
    std::advance(place, static_cast<std::ptrdiff_t>(random() % flat.size()));
    Json json = whole;
    // The member itself, or one that it is in.
    Json::json_pointer pointer(place.key());
    for (auto up = random() % 3; up > 0 && !pointer.parent_pointer().empty(); --up)
      pointer = pointer.parent_pointer();
    json[pointer] = others[random() % others.size()];
    try {
      parse_manifest(with_checksum(json), "m");
    } catch (const Error&) {
      ++refused;
    }
    std::string text = encode(example_manifest());
    text[random() % text.size()] = static_cast<char>(random());
    try {
      parse_manifest(text, "m");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 3'000);
}

}  // namespace
}  // namespace cohort::checkpoint
