// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/plan.h"

#include <ATen/core/jit_type.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/interpreter/aliases.h"
#include "cohort/function/program/allow_list.h"
#include "cohort/function/program/wire.h"
#include "cohort/function/step_scope.h"

namespace cohort::function {
namespace {

constexpr std::size_t kForever = std::numeric_limits<std::size_t>::max();

std::string full_name(const Op& op) {
  return op.overload.empty() ? op.name : op.name + "." + op.overload;
}

template <class Visit>
void for_each_taken(const Op& op, Visit visit) {
  for (const Arg& arg : op.args) for_each_value(arg, visit);
}

template <class Visit>
void for_each_given(const Op& op, Visit visit) {
  for (const Out& out : op.outs) {
    for (const int id : out.ids) {
      if (id != -1) visit(id);
    }
  }
}

bool is_kind(const EffectOp* op, EffectOpKind kind) { return op != nullptr && op->kind == kind; }

std::vector<std::int64_t> integers_at(const Op& op, std::size_t place) {
  const bool is_list = place < op.args.size() && op.args[place].kind == Arg::Kind::integers;
  return is_list ? op.args[place].constant.toIntVector() : std::vector<std::int64_t>();
}

// The variables that this op pulls; empty for ops that pull none.
std::vector<std::int64_t> pulled_by(const Op& op) {
  if (op.name == "cohort::next_segment") return integers_at(op, 0);
  return op.name == "cohort::gather" ? integers_at(op, 4) : std::vector<std::int64_t>();
}

// In the order of Arg::Kind.
constexpr auto kKindNames = std::to_array<std::string_view>(
    {"nothing", "a tensor", "a list of tensors", "an integer", "a real number", "a boolean",
     "a boolean", "a complex number", "a text", "a device", "a list of integers",
     "a list of real numbers", "a list of booleans", "a list of numbers"});

std::string_view name_of(Arg::Kind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

// Makes one plan. Used only inside make_plan().
class Planner {
 public:
  Planner(Program program, std::string identity)
      : program_(std::move(program)), aliases_(program_.value_count) {
    plan_.identity = std::move(identity);
    plan_.value_count = program_.value_count;
  }

  Plan make() {
    find_lifetimes();
    note_variables();
    for (number_ = 0; number_ < program_.ops.size(); ++number_) plan_op(program_.ops[number_]);
    plan_memory();
    fill_info();
    return std::move(plan_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Op& op, const Parts&... parts) const {
    internal::throw_error(ErrorCode::unimplemented,
                          "[function.prepare] cannot run the function: operator '", full_name(op),
                          "' (op #", number_, ") ", parts..., "; this task runs LibTorch ",
                          TORCH_VERSION, ", the function was traced with ",
                          program_.producer.empty() ? TORCH_VERSION : program_.producer.c_str());
  }

  template <class... Parts>
  void require(bool condition, const Op& op, const Parts&... parts) const {
    COHORT_CHECK(condition, ErrorCode::data_loss, "[function.prepare] broken program: op #",
                 number_, " ", op.name, " ", parts...);
  }

  void find_lifetimes() {
    last_mentions_.resize(static_cast<std::size_t>(program_.value_count), 0);
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      for_each_mentioned(program_.ops[i],
                         [&](int id) { last_mentions_[static_cast<std::size_t>(id)] = i; });
    }
    for (const int id : program_.outputs) {
      if (id != -1) last_mentions_[static_cast<std::size_t>(id)] = kForever;
    }
  }

  // Visits the values that `op` takes or gives, and the variables that it pulls. The
  // registers of these must live until then, because later ops may read only views of them.
  template <class Visit>
  void for_each_mentioned(const Op& op, Visit visit) const {
    for_each_taken(op, visit);
    for_each_given(op, visit);
    for (const std::int64_t variable : pulled_by(op)) {
      if (is_variable(variable)) visit(program_.variables[static_cast<std::size_t>(variable)].id);
    }
  }

  bool is_variable(std::int64_t index) const {
    return index >= 0 && index < static_cast<std::int64_t>(program_.variables.size());
  }

  void note_variables() {
    variable_of_.resize(static_cast<std::size_t>(program_.value_count), -1);
    for (std::size_t i = 0; i < program_.variables.size(); ++i) {
      const ProgramVariable& variable = program_.variables[i];
      variable_of_[static_cast<std::size_t>(variable.id)] = static_cast<int>(i);
      plan_.info.variables.push_back(
          {variable.name, variable.spec, variable.is_read, false, variable.is_handle_only});
      plan_.variables.push_back({variable.id, variable.is_read && !variable.is_handle_only, false});
      is_pulled_.push_back(variable.is_read);
    }
  }

  void plan_op(const Op& op) {
    if (!is_allowed_op(op.name)) refuse(op, "is not on the list of those that a server runs");
    PlannedOp planned;
    planned.name = full_name(op);
    if (const EffectOp* effect = find_effect_op(op.name)) {
      if (!op.overload.empty()) refuse(op, "does not exist");
      planned.effect = effect;
      add_sources(op, effect->schema, planned);
      note_effect(op, *effect);
    } else {
      const auto kernel = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
      if (!kernel) refuse(op, "does not exist");
      planned.kernel = *kernel;
      planned.is_without_gradients = (op.flags & Op::without_gradients) != 0;
      add_sources(op, planned.kernel->schema(), planned);
      aliases_.add(op, *planned.kernel, static_cast<int>(number_));
      has_computed_ = true;
    }
    check_reads(op);
    planned.outs = op.outs;
    plan_lifetimes(op, planned);
    plan_.ops.push_back(std::move(planned));
  }

  void add_sources(const Op& op, const c10::FunctionSchema& schema, PlannedOp& planned) const {
    const auto& arguments = schema.arguments();
    if (op.args.size() > arguments.size()) {
      refuse(op, "takes ", arguments.size(), " arguments, got ", op.args.size());
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const bool is_given = i < op.args.size();
      auto source = is_given ? source_of(op.args[i], arguments[i]) : default_source(arguments[i]);
      if (!source && !is_given) refuse(op, "needs argument '", arguments[i].name(), "'");
      if (!source) {
        refuse(op, "argument '", arguments[i].name(), "' of type ", arguments[i].type()->str(),
               " got ", name_of(op.args[i].kind));
      }
      planned.sources.push_back(std::move(*source));
    }
    const auto& returns = schema.returns();
    if (op.outs.size() > returns.size()) {
      refuse(op, "gives ", returns.size(), " results, the program wants ", op.outs.size());
    }
    for (std::size_t i = 0; i < returns.size(); ++i) check_return(op, i, *returns[i].type());
  }

  void check_return(const Op& op, std::size_t index, const c10::Type& type) const {
    const bool is_list = type.isSubtypeOf(*c10::ListType::ofTensors());
    if (!is_list && !type.isSubtypeOf(*c10::TensorType::get())) {
      refuse(op, "gives a result of type ", type.str(), ", and programs hold tensors only");
    }
    if (index < op.outs.size() && op.outs[index].is_list != is_list) {
      refuse(op, "result ", index, " of type ", type.str(), " is not what the program wants");
    }
  }

  void note_effect(const Op& op, const EffectOp& effect) {
    const auto& arguments = effect.schema.arguments();
    for (std::size_t i = 0; i < op.args.size(); ++i) {
      // Kernels accept an absent tensor, hosts do not.
      require(arguments[i].type()->kind() != c10::TypeKind::TensorType ||
                  op.args[i].kind == Arg::Kind::value,
              op, "needs a tensor as '", arguments[i].name(), "', got ", name_of(op.args[i].kind));
      if (arguments[i].name() == "variable") {
        const std::int64_t variable = op.args[i].constant.toInt();
        require(is_variable(variable), op, "names variable ", variable, " of ",
                program_.variables.size());
        ProgramInfo::Variable& info = plan_.info.variables[static_cast<std::size_t>(variable)];
        if (effect.kind != EffectOpKind::update) continue;
        info.is_updated = true;
        if (effect.update == internal::Effect::Kind::merge_average) info.is_merged = true;
      }
    }
    note_pulls(op);
    if (effect.kind == EffectOpKind::gather) check_gather(op);
    if (effect.kind != EffectOpKind::iterator_next) return;
    require(!has_computed_, op, "draws an element after other operators have run");
    const std::int64_t resource = op.args[0].constant.toInt();
    require(resource >= 0 || resource == kWorkerIndexResource, op, "names resource ", resource);
    plan_.info.draws.push_back({resource, program_.draws[plan_.info.draws.size()].fields});
  }

  void note_pulls(const Op& op) {
    for (const std::int64_t index : pulled_by(op)) {
      require(is_variable(index), op, "names variable ", index, " of ", program_.variables.size());
      const ProgramVariable& variable = program_.variables[static_cast<std::size_t>(index)];
      require(!variable.is_handle_only, op, "pulls '", variable.name, "', which is only a handle");
      is_pulled_[static_cast<std::size_t>(index)] = true;
      aliases_.mark_written(variable.id, static_cast<int>(number_));
    }
  }

  // Which results belong to which table follows from the numbers of ids.
  void check_gather(const Op& op) const {
    const std::vector<std::int64_t> tables = integers_at(op, 0);
    const std::vector<std::int64_t> counts = integers_at(op, 2);
    std::size_t ids = 0;
    for (const std::int64_t count : counts) {
      require(count > 0 && count <= program_.value_count, op, "has ", count, " ids for a table");
      ids += static_cast<std::size_t>(count);
    }
    for (const std::int64_t table : tables) {
      require(is_variable(table), op, "names variable ", table, " of ", program_.variables.size());
      const auto& sizes = program_.variables[static_cast<std::size_t>(table)].spec.sizes;
      require(sizes && !sizes->empty(), op, "gathers rows of variable ", table, ", which has none");
    }
    const bool fits = counts.size() == tables.size() &&
                      integers_at(op, 1).size() == tables.size() && op.args[3].ids.size() == ids &&
                      op.outs.size() == 1 && op.outs[0].is_list &&
                      op.outs[0].ids.size() == 2 * tables.size() + ids;
    require(fits, op, "has lists that do not fit together");
  }

  // The value of a variable that is not pulled cannot be read; a handle's shape can.
  void check_reads(const Op& op) {
    for_each_taken(op, [&](int id) {
      const int index = variable_of_[static_cast<std::size_t>(id)];
      if (index < 0) return;
      const ProgramVariable& variable = program_.variables[static_cast<std::size_t>(index)];
      require(is_pulled_[static_cast<std::size_t>(index)] || variable.is_handle_only, op,
              "reads variable '", variable.name, "', whose value is not pulled");
      plan_.variables[static_cast<std::size_t>(index)].needs_stand_in = variable.is_handle_only;
    });
  }

  // A value whose last mention is this one argument moves to the stack, so that kernels see the
  // only reference, as in eager execution; every other value that ends here is dropped after the
  // op.
  void plan_lifetimes(const Op& op, PlannedOp& planned) const {
    std::vector<int> ending;
    const auto note = [&](int id) {
      if (last_mentions_[static_cast<std::size_t>(id)] == number_) ending.push_back(id);
    };
    for_each_mentioned(op, note);
    for (Source& source : planned.sources) {
      if (source.kind != Source::Kind::value) continue;
      source.is_moved = std::count(ending.begin(), ending.end(), source.id) == 1;
      if (source.is_moved) std::erase(ending, source.id);
    }
    std::sort(ending.begin(), ending.end());
    ending.erase(std::unique(ending.begin(), ending.end()), ending.end());
    planned.dead = std::move(ending);
  }

  // Memory that does not belong to the run (inputs, constants, the host's tensors) is copied before
  // an op writes to it. Called when all operators are known.
  void plan_memory() {
    for (const ProgramInput& input : program_.inputs) {
      plan_.inputs.push_back({input.id, aliases_.is_written(input.id)});
    }
    for (const ProgramConstant& constant : program_.constants) {
      if (constant.is_wrapped_number)
        constant.value.unsafeGetTensorImpl()->set_wrapped_number(true);
      plan_.constants.push_back({constant.id, constant.value, aliases_.is_written(constant.id)});
    }
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) plan_arguments(plan_.ops[i], i);
    std::vector<int> from_host;
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
      PlannedOp& op = plan_.ops[i];
      if (!is_kind(op.effect, EffectOpKind::iterator_next) &&
          !is_kind(op.effect, EffectOpKind::gather) && !is_kind(op.effect, EffectOpKind::call)) {
        continue;
      }
      for_each_given(program_.ops[i], [&](int id) {
        from_host.push_back(aliases_.class_of(id));
        if (aliases_.is_written(id)) op.copies_results = true;
      });
    }
    for (std::size_t i = 0; i < program_.variables.size(); ++i) {
      // This variable is pulled in the middle of a run.
      if (is_pulled_[i] && !program_.variables[i].is_read)
        from_host.push_back(aliases_.class_of(program_.variables[i].id));
    }
    std::sort(from_host.begin(), from_host.end());
    for (const int id : program_.outputs) {
      plan_.outputs.push_back(
          {id, id != -1 &&
                   std::binary_search(from_host.begin(), from_host.end(), aliases_.class_of(id))});
    }
  }

  // An effect happens at its place in the program, but the host reads its tensors only later, when
  // it sends them.
  void plan_arguments(PlannedOp& op, std::size_t position) const {
    if (op.effect == nullptr || !op.effect->keeps_arguments) return;
    const auto is_written = [&](int id) {
      return id != -1 && aliases_.is_written_after(id, static_cast<int>(position));
    };
    op.copies_arguments =
        std::any_of(op.sources.begin(), op.sources.end(), [&](const Source& source) {
          return is_written(source.id) ||
                 std::any_of(source.ids.begin(), source.ids.end(), is_written);
        });
  }

  void fill_info() {
    ProgramInfo& info = plan_.info;
    for (const ProgramInput& input : program_.inputs) info.inputs.push_back(input.spec);
    for (const int id : program_.outputs) require_output(id);
    info.output_count = program_.outputs.size();
    info.op_count = program_.ops.size();
    for (const PlannedOp& op : plan_.ops) {
      for (const Source& source : op.sources) {
        if (source.kind == Source::Kind::generator) plan_.has_generator = true;
      }
    }
    info.is_random = program_.is_random || plan_.has_generator;
  }

  void require_output(int id) const {
    const int index = id == -1 ? -1 : variable_of_[static_cast<std::size_t>(id)];
    if (index < 0) return;
    const ProgramVariable& variable = program_.variables[static_cast<std::size_t>(index)];
    COHORT_CHECK(is_pulled_[static_cast<std::size_t>(index)] && !variable.is_handle_only,
                 ErrorCode::data_loss, "[function.prepare] broken program: variable '",
                 variable.name, "' is an output, but its value is not pulled");
  }

  Program program_;
  Plan plan_;
  AliasClasses aliases_;
  std::size_t number_ = 0;                  // of the current op
  std::vector<std::size_t> last_mentions_;  // by value: the last op that takes or gives it
  std::vector<int> variable_of_;            // by value: -1 or the variable's position
  std::vector<bool> is_pulled_;             // by variable: before the run, or by an op so far
  bool has_computed_ = false;
};

}  // namespace

Plan make_plan(Program program, std::string identity) {
  verify(program);
  return Planner(std::move(program), std::move(identity)).make();
}

}  // namespace cohort::function
