// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/functions/map_function.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "cohort/core/computed.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/program_supply.h"
#include "cohort/function/registry.h"

namespace cohort::data {
namespace {

constexpr const char* kSource = "source of programs";  // never serialized

MapFunction::Result result_of(const Nest& returned, const std::string& name) {
  MapFunction::Result result;
  result.structure = returned.map_leaves([&](const Nest& returned_leaf) {
    // A predicate may return a host bool.
    const Nest leaf = returned_leaf.kind() == Nest::Kind::boolean
                          ? Nest(at::scalar_tensor(returned_leaf.boolean(), at::kBool))
                          : returned_leaf;
    COHORT_CHECK(leaf.is_tensor() && leaf.tensor().defined(), ErrorCode::invalid_argument,
                 "[data.map] expected tensors from '", name, "', got ", name_of(leaf.kind()),
                 " for field ", result.fields.size(), "; return a tensor");
    COHORT_CHECK(leaf.tensor().layout() == at::kStrided, ErrorCode::invalid_argument,
                 "[data.map] expected dense tensors from '", name, "', got ",
                 leaf.tensor().toString(), " for field ", result.fields.size(),
                 "; sparse fields are not supported yet");
    result.fields.push_back(computed(leaf.tensor()));
    return Nest(static_cast<std::int64_t>(result.fields.size()) - 1);
  });
  return result;
}

class LocalFunction final : public MapFunction {
 public:
  explicit LocalFunction(Function fn) : fn_(std::move(fn)) {}

  const std::string& name() const override { return fn_.name(); }

  Result call(const Nest& structure, const Fields& fields, std::uint64_t) const override {
    return result_of(fn_.call(arguments_of(structure, fields, fn_.state()->arity, name())), name());
  }

  Attributes attributes(const Node& map) const override {
    Nest::Items programs;
    for (const Bytes& program : trace_programs(*this, map.input())) {
      programs.emplace_back(
          std::string(reinterpret_cast<const char*>(program.data()), program.size()));
    }
    return {{"name", name()},
            {"programs", Nest::list(std::move(programs))},
            {"spec", nest_of(map.spec())}};
  }

  bool can_be_traced() const override { return true; }

 private:
  Function fn_;
};

// A function that is looked up by name where the graph runs.
class RegisteredFunction final : public MapFunction {
 public:
  explicit RegisteredFunction(std::string name) : name_(std::move(name)) {}

  const std::string& name() const override { return name_; }

  Result call(const Nest&, const Fields& fields, std::uint64_t) const override {
    Result result;
    result.fields = function::call_registered_function(name_, fields);
    result.structure = ElementSpec::tuple(specs_of(result.fields)).structure;
    return result;
  }

  Attributes attributes(const Node&) const override { return {{"registered", name_}}; }

 private:
  std::string name_;
};

[[noreturn]] void refuse_effect() {
  internal::throw_error(
      ErrorCode::failed_precondition,
      "[data.map] expected a function without effects, got one that draws from an iterator "
      "or updates a variable");
}

class NoResources final : public internal::EffectHandler {
 public:
  std::vector<at::Tensor> iterator_next(std::int64_t) override { refuse_effect(); }
  void update(internal::Effect) override { refuse_effect(); }
  Read read(std::span<const RowRead>, std::span<const std::int64_t>) override { refuse_effect(); }
};

class ProgramFunction final : public MapFunction {
 public:
  // `source` may be null.
  ProgramFunction(std::string name, std::vector<std::string> bytes, ElementSpec output,
                  std::shared_ptr<ProgramSource> source)
      : name_(std::move(name)),
        bytes_(std::move(bytes)),
        output_(std::move(output)),
        source_(std::move(source)) {
    COHORT_CHECK(!bytes_.empty(), ErrorCode::data_loss,
                 "[data.map] expected at least one program of '", name_, "', got none");
    for (const std::string& program : bytes_) {
      programs_.push_back(function::PreparedProgram::decode(std::as_bytes(std::span(program))));
      const function::ProgramInfo& info = programs_.back()->info();
      COHORT_CHECK(info.variables.empty() && info.draws.empty(), ErrorCode::data_loss,
                   "[data.map] expected a program without variables and iterators in '", name_,
                   "', got ", info.variables.size(), " and ", info.draws.size());
      check_outputs(info);
    }
  }

  const std::string& name() const override { return name_; }

  Result call(const Nest&, const Fields& fields, std::uint64_t seed) const override {
    NoResources host;
    const auto known = std::ranges::find_if(
        programs_, [&](const auto& program) { return takes(program->info(), fields); });
    if (known != programs_.end()) {
      return {.fields = (*known)->run(fields, {}, host, seed), .structure = output_.structure};
    }
    const auto program = source_ ? source_->program_for(fields, name_) : nullptr;
    if (program == nullptr) refuse(fields);
    check_outputs(program->info());
    return {.fields = program->run(fields, {}, host, seed), .structure = output_.structure};
  }

  bool is_code() const override { return false; }

  Attributes attributes(const Node&) const override {
    Nest::Items programs(bytes_.begin(), bytes_.end());
    return {
        {"name", name_}, {"programs", Nest::list(std::move(programs))}, {"spec", nest_of(output_)}};
  }

 private:
  void check_outputs(const function::ProgramInfo& info) const {
    COHORT_CHECK(info.output_count == output_.fields.size(), ErrorCode::data_loss,
                 "[data.map] expected programs of ", output_.fields.size(), " outputs in '", name_,
                 "', got ", info.output_count);
  }

  [[noreturn]] void refuse(const Fields& fields) const {
    std::string traced;
    for (const auto& program : programs_) {
      traced += (traced.empty() ? "" : " or ") + describe(program->info().inputs);
    }
    internal::throw_error(
        ErrorCode::invalid_argument, "[data.map] expected an element ", traced, ", for which '",
        name_, "' was traced when the pipeline was shipped, got ", describe(specs_of(fields)),
        "; it is not traced for other shapes if a program deserializes the pipeline itself: give "
        "elements one shape before map(), as with padded_batch(…, {.padded_shapes = …}) or, where "
        "only the last batch is short, batch(…, {.drop_remainder = true})");
  }

  std::string name_;
  std::vector<std::string> bytes_;
  ElementSpec output_;
  std::shared_ptr<ProgramSource> source_;  // shared with functions of the same step
  std::vector<std::shared_ptr<const function::PreparedProgram>> programs_;
};

}  // namespace

CallRandom random_of(const MapFunction& function, const Node& op, const StageContext& context) {
  if (function.is_code() && context.has_own_random_numbers()) return CallRandom::of(op, context);
  return {.seed = context.random_seed()};
}

std::shared_ptr<const function::PreparedProgram> ProgramSource::program_for(
    const Fields& element, const std::string& name) const {
  return supply_->program_for(function_, element, name);
}

bool has_function(std::string_view op) {
  return op == "filter" || op == "flat_map" || op == "interleave" || op == "map";
}

void add_source(std::string_view op, const std::shared_ptr<ProgramSource>& source,
                Attributes& attributes) {
  if (has_function(op) && !attributes.contains("registered")) {
    attributes[kSource] = Nest(std::shared_ptr<Handle>(source));
  }
}

std::shared_ptr<ProgramSource> source_in(AttributeReader& attributes) {
  if (!attributes.has(kSource)) return nullptr;
  const Nest& source = attributes.nest(kSource);
  COHORT_CHECK(source.kind() == Nest::Kind::handle, ErrorCode::data_loss,
               "[data.deserialize] expected no attribute '", kSource, "', got one");
  return std::dynamic_pointer_cast<ProgramSource>(source.handle());
}

bool takes(const function::ProgramInfo& info, const Fields& fields) {
  return std::equal(info.inputs.begin(), info.inputs.end(), fields.begin(), fields.end(),
                    [](const TensorSpec& spec, const at::Tensor& field) {
                      return spec.dtype == field.scalar_type() &&
                             at::IntArrayRef(*spec.sizes) == field.sizes();
                    });
}

std::string map_function_named(const std::string& name) {
  constexpr std::string_view kUnnamed = "map function";  // of Dataset::map()
  return name == kUnnamed ? "a map function" : "map function '" + name + "'";
}

std::vector<Nest> arguments_of(const Nest& structure, const Fields& fields, std::size_t arity,
                               const std::string& name) {
  if (arity == 1 && fields.size() == 1 && structure.is_leaf()) return {Nest(fields[0])};
  const Nest element = ElementSpec{.structure = structure, .fields = {}}.pack(fields);
  if (element.kind() == Nest::Kind::tuple && element.items().size() == arity)
    return element.items();
  if (arity == 1) return {element};
  COHORT_CHECK(arity == fields.size(), ErrorCode::invalid_argument, "[data.map] expected '", name,
               "' to take ", fields.size(), " tensors or one Nest for elements ",
               element.structure(), ", got a function of ", arity, " parameters");
  return {fields.begin(), fields.end()};
}

std::shared_ptr<const MapFunction> local_function(Function fn) {
  if (!fn.state()->registered_name.empty()) {
    return std::make_shared<RegisteredFunction>(fn.state()->registered_name);
  }
  COHORT_CHECK(fn.state()->arity > 0, ErrorCode::invalid_argument, "[data.map] expected '",
               fn.name(), "' to take the element's fields, got a function without parameters");
  return std::make_shared<LocalFunction>(std::move(fn));
}

std::shared_ptr<const MapFunction> read_map_function(AttributeReader& attributes) {
  if (attributes.has("registered")) {
    return std::make_shared<RegisteredFunction>(attributes.text("registered"));
  }
  return std::make_shared<ProgramFunction>(attributes.text("name"), attributes.texts("programs"),
                                           attributes.spec("spec"), source_in(attributes));
}

}  // namespace cohort::data
