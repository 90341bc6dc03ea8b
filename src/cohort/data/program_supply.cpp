// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/program_supply.h"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cohort/core/mutex.h"
#include "cohort/core/random.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/graph/spec_inference.h"

namespace cohort::data {
namespace {

constexpr std::array<std::byte, 4> kProgramsMagic{std::byte{'C'}, std::byte{'H'}, std::byte{'D'},
                                                  std::byte{'P'}};
constexpr std::uint8_t kProgramsVersion = 1;

using Program = std::shared_ptr<const function::PreparedProgram>;

std::uint64_t mixed(std::uint64_t hash, c10::ScalarType dtype, at::IntArrayRef sizes) {
  hash = mix_seed(hash, static_cast<std::uint64_t>(dtype));
  for (const std::int64_t size : sizes) hash = mix_seed(hash, static_cast<std::uint64_t>(size));
  return hash;
}

std::uint64_t hash_of(const Fields& element) {
  std::uint64_t hash = element.size();
  for (const at::Tensor& field : element) hash = mixed(hash, field.scalar_type(), field.sizes());
  return hash;
}

std::uint64_t hash_of(const std::vector<TensorSpec>& element) {
  std::uint64_t hash = element.size();
  for (const TensorSpec& field : element) hash = mixed(hash, field.dtype, *field.sizes);
  return hash;
}

}  // namespace

struct ProgramSupply::State {
  // An element for which a program was requested.
  struct Waiting {
    std::string function;
    std::vector<TensorSpec> element;
    std::optional<Error> refusal = std::nullopt;
  };
  using Programs = std::unordered_multimap<std::uint64_t, Program>;

  explicit State(Ask to_ask) : ask(std::move(to_ask)) {}

  Program find(const std::string& function, std::uint64_t hash, const Fields& element) const
      COHORT_REQUIRES(mutex) {
    const auto of_function = programs.find(function);
    if (of_function == programs.end()) return nullptr;
    const auto [begin, end] = of_function->second.equal_range(hash);
    const auto found = std::find_if(
        begin, end, [&](const auto& one) { return takes(one.second->info(), element); });
    return found == end ? nullptr : found->second;
  }
  bool has_asked(const std::string& function, const std::vector<TensorSpec>& element) const
      COHORT_REQUIRES(mutex) {
    return std::ranges::any_of(waiting, [&](const Waiting& one) {
      return !one.refusal && one.function == function && one.element == element;
    });
  }
  void check_running() const COHORT_REQUIRES(mutex) {
    COHORT_CHECK(!has_ended, ErrorCode::cancelled,
                 "[data.map] the pipeline ended while an element waited for a program");
  }

  const Ask ask;
  Mutex mutex;
  Condition changed;
  std::map<std::string, Programs> programs COHORT_GUARDED_BY(mutex);
  std::list<Waiting> waiting COHORT_GUARDED_BY(mutex);
  bool has_started COHORT_GUARDED_BY(mutex) = false;
  bool has_ended COHORT_GUARDED_BY(mutex) = false;
};

ProgramSupply::ProgramSupply(Ask ask) : state_(std::make_unique<State>(std::move(ask))) {}
ProgramSupply::~ProgramSupply() = default;

void ProgramSupply::add(const std::string& function, std::span<const std::byte> program) {
  Program decoded = function::PreparedProgram::decode(program);
  const function::ProgramInfo& info = decoded->info();
  COHORT_CHECK(info.variables.empty() && info.draws.empty(), ErrorCode::data_loss,
               "[data.map] expected a program without variables and iterators, got ",
               info.variables.size(), " and ", info.draws.size());
  const std::uint64_t hash = hash_of(info.inputs);
  {
    const Lock lock(state_->mutex);
    State::Programs& known = state_->programs[function];
    const auto [begin, end] = known.equal_range(hash);
    if (std::any_of(begin, end, [&](const auto& one) {
          return one.second->info().inputs == decoded->info().inputs;
        })) {
      return;
    }
    known.emplace(hash, std::move(decoded));
  }
  state_->changed.notify_all();
}

void ProgramSupply::refuse(const std::string& function, const std::vector<TensorSpec>& element,
                           const Error& error) {
  {
    const Lock lock(state_->mutex);
    for (State::Waiting& one : state_->waiting) {
      if (!one.refusal && one.function == function && one.element == element) one.refusal = error;
    }
  }
  state_->changed.notify_all();
}

void ProgramSupply::start() {
  const Lock lock(state_->mutex);
  state_->has_started = true;
}

void ProgramSupply::end() noexcept {
  {
    const Lock lock(state_->mutex);
    state_->has_ended = true;
  }
  state_->changed.notify_all();
}

std::shared_ptr<const function::PreparedProgram> ProgramSupply::program_for(
    const std::string& function, const Fields& element, const std::string& function_name) {
  State& state = *state_;
  const std::uint64_t hash = hash_of(element);
  std::list<State::Waiting>::iterator mine;
  {
    const Lock lock(state.mutex);
    Program found = state.find(function, hash, element);
    if (found || !state.has_started) return found;
    const std::vector<TensorSpec> specs = specs_of(element);
    // If several elements need the same program, one requests it. If the request is refused, the
    // next one requests it again.
    state.changed.wait(state.mutex, Deadline(), [&]() COHORT_REQUIRES(state.mutex) {
      found = state.find(function, hash, element);
      return found || state.has_ended || !state.has_asked(function, specs);
    });
    if (found) return found;
    state.check_running();
    mine = state.waiting.insert(state.waiting.end(),
                                State::Waiting{.function = function, .element = specs});
  }
  std::optional<Error> error;
  try {
    state.ask(function, element);
  } catch (...) {
    error = current_error().during("asking for a program of '" + function_name + "'");
  }
  Program found;
  {
    const Lock lock(state.mutex);
    if (!error) {
      state.changed.wait(state.mutex, Deadline(), [&]() COHORT_REQUIRES(state.mutex) {
        found = state.find(function, hash, element);
        return found || state.has_ended || mine->refusal;
      });
      error = mine->refusal;
    }
    state.waiting.erase(mine);
    if (!found && !error) state.check_running();
  }
  state.changed.notify_all();  // the next element may request a program
  if (found) return found;
  throw Error(*error);
}

Dataset load_shipped(std::span<const std::byte> bytes,
                     const std::shared_ptr<ProgramSupply>& supply) {
  ByteReader reader(bytes, "pipeline with programs");
  std::span<const std::byte> graph = bytes;
  if (bytes.size() >= kProgramsMagic.size() &&
      std::equal(kProgramsMagic.begin(), kProgramsMagic.end(), bytes.begin())) {
    for (std::size_t i = 0; i < kProgramsMagic.size(); ++i) reader.u8();
    if (reader.u8() != kProgramsVersion) reader.fail("version 1");
    graph = reader.blob();
    for (std::size_t left = reader.count(2); left > 0; --left) {
      const std::string function = reader.text();
      supply->add(function, reader.blob());
    }
    reader.expect_end();
  }
  return Dataset(decode_graph(graph, supply));
}

Bytes with_programs(Bytes graph, const std::vector<FunctionProgram>& programs) {
  if (programs.empty()) return graph;
  ByteWriter writer;
  for (const std::byte byte : kProgramsMagic) writer.u8(static_cast<std::uint8_t>(byte));
  writer.u8(kProgramsVersion);
  writer.blob(graph);
  writer.varint(programs.size());
  for (const FunctionProgram& one : programs) {
    writer.text(one.function);
    writer.blob(one.program);
  }
  return writer.take();
}

}  // namespace cohort::data
