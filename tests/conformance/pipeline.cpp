// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/pipeline.h"

#include <map>

#include "cohort/core/error.h"
#include "cohort/data/auto_shard.h"
#include "tests/conformance/named_functions.h"
#include "tests/conformance/op.h"
#include "tests/conformance/sources.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

// A function gets an element that is a tuple of one part without the tuple.
ElementSpec argument_spec(ElementSpec spec) {
  const Nest& structure = spec.structure;
  if (structure.kind() == Nest::Kind::tuple && structure.items().size() == 1) {
    const Nest only = structure.items()[0];
    spec.structure = only;
  }
  return spec;
}

// --- functions ----------------------------------------------------------------------------------

Dataset map(const Dataset& input, const Op& op) {
  NamedMap fn = named_map(op.get<std::string>("fn"), op.json("arg"), op.state());
  MapOptions options;
  options.num_parallel_calls = op.parallel("parallel");
  options.deterministic = op.maybe<bool>("deterministic");
  options.output_spec = fn.output(argument_spec(input.element_spec()));
  return input.map(
      Function([call = std::move(fn.call)](const Nest& element) { return call(element); },
               {.name = op.get<std::string>("fn")}),
      std::move(options));
}

Dataset filter(const Dataset& input, const Op& op) {
  auto predicate = named_predicate(op.get<std::string>("fn"), op.json("arg"));
  return input.filter(
      Function([predicate](const Nest& element) { return Nest(predicate(element)); },
               {.name = op.get<std::string>("fn")}));
}

Dataset flat_map(const Dataset& input, const Op& op) {
  return input.flat_map(named_dataset(op.get<std::string>("fn"), op.json("arg")));
}

Dataset interleave(const Dataset& input, const Op& op) {
  InterleaveOptions options;
  options.cycle_length = op.get_or<std::int64_t>("cycle", kAutotune);
  options.block_length = op.get_or<std::int64_t>("block", 1);
  options.num_parallel_calls = op.parallel("parallel");
  options.deterministic = op.maybe<bool>("deterministic");
  return input.interleave(named_dataset(op.get<std::string>("fn"), op.json("arg")), options);
}

// --- batches ------------------------------------------------------------------------------------

Dataset batch(const Dataset& input, const Op& op) {
  BatchOptions options;
  options.drop_remainder = op.get_or("drop", false);
  options.num_parallel_calls = op.parallel("parallel");
  return input.batch(op.get<std::int64_t>("size"), options);
}

// A list holds the sizes of one field; tuples and dicts have the structure of the element.
Nest shapes_of(const Json& shapes) {
  if (shapes.is_null()) return {};
  if (shapes.is_array()) {
    Nest::Items sizes;
    for (const Json& size : shapes)
      sizes.emplace_back(size.is_null() ? -1 : size.get<std::int64_t>());
    return Nest::list(std::move(sizes));
  }
  if (shapes.contains("tuple")) {
    Nest::Items items;
    for (const Json& item : shapes["tuple"]) items.push_back(shapes_of(item));
    return Nest::tuple(std::move(items));
  }
  Nest::Map entries;
  for (const auto& [key, item] : member(shapes, "dict").items())
    entries.emplace(key, shapes_of(item));
  return Nest::map(std::move(entries));
}

Dataset padded_batch(const Dataset& input, const Op& op) {
  PaddedBatchOptions options;
  options.padded_shapes = shapes_of(op.json("shapes"));
  if (op.has("value")) options.padding_values = nest_of(op.json("value"));
  options.drop_remainder = op.get_or("drop", false);
  return input.padded_batch(op.get<std::int64_t>("size"), options);
}

Dataset rebatch(const Dataset& input, const Op& op) {
  std::vector<std::int64_t> sizes;
  if (op.json("sizes").is_array()) {
    sizes = op.get<std::vector<std::int64_t>>("sizes");
  } else {
    sizes = {op.get<std::int64_t>("sizes")};
  }
  return input.rebatch(std::move(sizes), {.drop_remainder = op.get_or("drop", false)});
}

// --- the rest -----------------------------------------------------------------------------------

Dataset shuffle(const Dataset& input, const Op& op) {
  ShuffleOptions options;
  options.seed = op.maybe<std::int64_t>("seed");
  options.reshuffle_each_iteration = op.get_or("reshuffle", true);
  return input.shuffle(op.get<std::int64_t>("buffer"), options);
}

Dataset cache(const Dataset& input, const Op& op) {
  const auto file = op.get_or<std::string>("file", "");
  return input.cache(file.empty() ? file : op.state()->directory->path_of(file));
}

template <class T>
T choice(const Op& op, const char* key, const std::map<std::string, T>& choices, T otherwise) {
  if (!op.has(key)) return otherwise;
  const auto found = choices.find(op.get<std::string>(key));
  if (found == choices.end())
    throw CaseFault("unknown value " + op.json(key).dump() + " of " + key);
  return found->second;
}

const std::map<std::string, AutoShardPolicy> kPolicies = {{"OFF", AutoShardPolicy::off},
                                                          {"AUTO", AutoShardPolicy::automatic},
                                                          {"FILE", AutoShardPolicy::file},
                                                          {"DATA", AutoShardPolicy::data},
                                                          {"HINT", AutoShardPolicy::hint}};
const std::map<std::string, ExternalStatePolicy> kStatePolicies = {
    {"WARN", ExternalStatePolicy::warn},
    {"IGNORE", ExternalStatePolicy::ignore},
    {"FAIL", ExternalStatePolicy::fail}};

Dataset options(const Dataset& input, const Op& op) {
  DatasetOptions options;
  options.auto_shard_policy = choice(op, "auto_shard", kPolicies, AutoShardPolicy::automatic);
  options.deterministic = op.maybe<bool>("deterministic");
  options.slack = op.maybe<bool>("slack");
  options.private_threadpool_size = op.maybe<std::int64_t>("private_threadpool_size");
  if (op.has("external_state")) {
    options.external_state_policy =
        choice(op, "external_state", kStatePolicies, ExternalStatePolicy::warn);
  }
  options.autotune = op.maybe<bool>("autotune");
  return input.with_options(options);
}

Dataset concatenate(const Dataset& input, const Op& op) {
  return input.concatenate(build_pipeline(op.json("other"), op.state(), op.context()));
}

Dataset unbatch(const Dataset& input, const Op&) { return input.unbatch(); }
Dataset unique(const Dataset& input, const Op&) { return input.unique(); }
Dataset repeat(const Dataset& input, const Op& op) {
  return input.repeat(op.get_or<std::int64_t>("count", -1));
}
Dataset take(const Dataset& input, const Op& op) {
  return input.take(op.get<std::int64_t>("count"));
}
Dataset skip(const Dataset& input, const Op& op) {
  return input.skip(op.get<std::int64_t>("count"));
}
Dataset enumerate(const Dataset& input, const Op& op) {
  return input.enumerate(op.get_or<std::int64_t>("start", 0));
}
Dataset prefetch(const Dataset& input, const Op& op) {
  return input.prefetch(op.get_or<std::int64_t>("size", kAutotune));
}
Dataset shard(const Dataset& input, const Op& op) {
  return input.shard(op.get<std::int64_t>("num"), op.get<std::int64_t>("index"));
}
Dataset shard_automatically(const Dataset& input, const Op& op) {
  return auto_shard(input, {.num_workers = op.get<std::int64_t>("num"),
                            .index = op.get<std::int64_t>("index"),
                            .num_replicas = op.get_or<std::int64_t>("replicas", 1)});
}
Dataset rebatch_split(const Dataset& input, const Op& op) {
  return input.rebatch_split(op.get<std::int64_t>("n"));
}
Dataset assert_cardinality(const Dataset& input, const Op& op) {
  return input.assert_cardinality(op.get<std::int64_t>("n"));
}

struct Transformation {
  Dataset (*apply)(const Dataset& input, const Op& op);
  std::vector<std::string> fields;
};

const std::map<std::string, Transformation>& transformations() {
  static const std::map<std::string, Transformation> all = {
      {"map", {map, {"fn", "arg", "parallel", "deterministic"}}},
      {"filter", {filter, {"fn", "arg"}}},
      {"flat_map", {flat_map, {"fn", "arg"}}},
      {"interleave", {interleave, {"fn", "arg", "cycle", "block", "parallel", "deterministic"}}},
      {"batch", {batch, {"size", "drop", "parallel"}}},
      {"padded_batch", {padded_batch, {"size", "shapes", "value", "drop"}}},
      {"unbatch", {unbatch, {}}},
      {"unique", {unique, {}}},
      {"rebatch", {rebatch, {"sizes", "drop"}}},
      {"rebatch_split", {rebatch_split, {"n"}}},
      {"shuffle", {shuffle, {"buffer", "seed", "reshuffle"}}},
      {"repeat", {repeat, {"count"}}},
      {"take", {take, {"count"}}},
      {"skip", {skip, {"count"}}},
      {"concatenate", {concatenate, {"other"}}},
      {"enumerate", {enumerate, {"start"}}},
      {"cache", {cache, {"file"}}},
      {"prefetch", {prefetch, {"size"}}},
      {"shard", {shard, {"num", "index"}}},
      {"auto_shard", {shard_automatically, {"num", "index", "replicas"}}},
      {"assert_cardinality", {assert_cardinality, {"n"}}},
      {"options",
       {options,
        {"auto_shard", "deterministic", "slack", "private_threadpool_size", "external_state",
         "autotune"}}}};
  return all;
}

template <class T>
Json name_in(const std::map<std::string, T>& names, T value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return nullptr;
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Dataset build_pipeline(const Json& ops, const std::shared_ptr<CaseState>& state,
                       const InputContext& context) {
  const Json steps = resolved(ops, context);
  if (!steps.is_array() || steps.empty()) {
    throw CaseFault("expected a list of ops as pipeline, got " + brief(steps, 120));
  }
  Dataset dataset = build_source(Op(steps[0], state, context));
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const Op op(steps[i], state, context);
    const auto found = transformations().find(op.name());
    if (found == transformations().end()) throw CaseFault("unknown op '" + op.name() + "'");
    op.allow_only(found->second.fields);
    dataset = found->second.apply(dataset, op);
  }
  return dataset;
}

Json json_of(const DatasetOptions& options) {
  Json state_policy;
  if (options.external_state_policy) {
    state_policy = name_in(kStatePolicies, *options.external_state_policy);
  }
  return {{"auto_shard", name_in(kPolicies, options.auto_shard_policy)},
          {"deterministic", json_of(options.deterministic)},
          {"slack", json_of(options.slack)},
          {"private_threadpool_size", json_of(options.private_threadpool_size)},
          {"external_state", state_policy},
          {"autotune", json_of(options.autotune)}};
}

}  // namespace cohort::conformance
