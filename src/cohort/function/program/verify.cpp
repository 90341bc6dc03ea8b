// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/function/program/wire.h"

namespace cohort::function {
namespace {

constexpr std::string_view kIteratorNext = "cohort::iterator_next";

// Walks a program in order and tracks which values are defined. Used only inside verify().
class Verifier {
 public:
  explicit Verifier(const Program& program) : program_(program) {
    require(program.value_count >= 0, "value_count is ", program.value_count);
    is_defined_.resize(static_cast<std::size_t>(program.value_count));
  }

  void run() {
    for (const ProgramInput& input : program_.inputs) define(input.id, "an input");
    for (const ProgramVariable& variable : program_.variables) define(variable.id, "a variable");
    for (const ProgramConstant& constant : program_.constants) check(constant);
    std::size_t draw = 0;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) check(program_.ops[i], i, draw);
    require(draw == program_.draws.size(), program_.draws.size(), " draws have specs, but ", draw,
            " are made");
    for (const int id : program_.outputs) {
      if (id != -1) use(id, "an output");
    }
  }

 private:
  template <class... Parts>
  static void require(bool condition, const Parts&... parts) {
    COHORT_CHECK(condition, ErrorCode::data_loss, "[function.verify] broken program: ", parts...);
  }

  template <class... Place>
  void check_range(int id, const Place&... place) const {
    require(id >= 0 && id < program_.value_count, "expected a value below ", program_.value_count,
            ", got ", id, " in ", place...);
  }

  template <class... Place>
  void use(int id, const Place&... place) const {
    check_range(id, place...);
    require(is_defined_[static_cast<std::size_t>(id)], "value ", id,
            " is used before it is defined in ", place...);
  }

  template <class... Place>
  void define(int id, const Place&... place) {
    check_range(id, place...);
    require(!is_defined_[static_cast<std::size_t>(id)], "value ", id, " is defined twice, by ",
            place...);
    is_defined_[static_cast<std::size_t>(id)] = true;
  }

  void check(const ProgramConstant& constant) {
    define(constant.id, "a constant");
    require(constant.value.defined(), "constant ", constant.id, " has no value");
    require(!constant.is_wrapped_number || constant.value.dim() == 0, "constant ", constant.id,
            " is a wrapped number with dimensions");
  }

  void check(const Op& op, std::size_t number, std::size_t& draw) {
    for (const Arg& arg : op.args)
      for_each_value(arg, [&](int id) { use(id, "op #", number, " ", op.name); });
    for (const Out& out : op.outs) {
      require(out.is_list || out.ids.size() == 1, "op #", number, " ", op.name, " gives ",
              out.ids.size(), " tensors where one belongs");
      for (const int id : out.ids) {
        // The result of an op may have a number that is defined already: that of the argument that
        // the op wrote, or of an equal view.
        if (id == -1) continue;
        check_range(id, "op #", number, " ", op.name);
        is_defined_[static_cast<std::size_t>(id)] = true;
      }
    }
    if (op.name == kIteratorNext) check_draw(op, number, draw++);
  }

  void check_draw(const Op& op, std::size_t number, std::size_t draw) const {
    require(draw < program_.draws.size(), "op #", number, " draws an element without specs");
    const std::size_t fields = program_.draws[draw].fields.size();
    require(op.outs.size() == 1 && op.outs[0].is_list && op.outs[0].ids.size() == fields, "op #",
            number, " draws an element of other than ", fields, " fields");
  }

  const Program& program_;
  std::vector<bool> is_defined_;
};

}  // namespace

void verify(const Program& program) { Verifier(program).run(); }

}  // namespace cohort::function
