// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/contiguous.h>
#include <torch/version.h>

#include <map>

#include "cohort/core/error.h"
#include "cohort/function/program/wire.h"
#include "cohort/function/program/wire_format.h"

namespace cohort::function {
namespace {

using Kind = Arg::Kind;

// Whether `arg` equals the default `value`, so that it can be left out. Only for kinds that
// defaults have.
bool equals_default(const Arg& arg, const c10::IValue& value) {
  switch (arg.kind) {
    case Kind::none:
      return value.isNone();
    case Kind::integer:
      return value.isInt() && value.toInt() == arg.constant.toInt();
    case Kind::real:
      return value.isDouble() && value.toDouble() == arg.constant.toDouble();
    case Kind::boolean_false:
      return value.isBool() && !value.toBool();
    case Kind::boolean_true:
      return value.isBool() && value.toBool();
    case Kind::text:
      return value.isString() && value.toStringRef() == arg.constant.toStringRef();
    case Kind::integers:
      return value.isIntList() && value.toIntVector() == arg.constant.toIntVector();
    default:
      return false;
  }
}

// The number of arguments without the last ones that equal the schema's defaults. This saves bytes,
// and a program of a newer LibTorch, which added arguments with defaults, runs on an older one.
std::size_t written_arguments(const Op& op) {
  std::size_t count = op.args.size();
  const auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  if (!handle) return count;
  const auto& arguments = handle->schema().arguments();
  while (count > 0 && count <= arguments.size()) {
    const auto& value = arguments[count - 1].default_value();
    if (!value || !equals_default(op.args[count - 1], *value)) break;
    --count;
  }
  return count;
}

// Writes one program. Used only inside encode().
class ProgramWriter {
 public:
  explicit ProgramWriter(const Program& program) : program_(program) {}

  Bytes write() {
    header();
    op_names();
    interface();
    out_.varint(program_.constants.size());
    for (const ProgramConstant& constant : program_.constants) write(constant);
    out_.varint(program_.ops.size());
    for (const Op& op : program_.ops) write(op);
    out_.varint(program_.outputs.size());
    for (const int id : program_.outputs) optional_id(id);
    return out_.take();
  }

 private:
  void id(int value) { out_.varint(static_cast<std::uint64_t>(value)); }
  void optional_id(int value) { out_.varint(static_cast<std::uint64_t>(value + 1)); }

  void header() {
    for (const char c : wire::kMagic) out_.u8(static_cast<std::uint8_t>(c));
    out_.u8(wire::kVersion);
    out_.u8(program_.is_random ? wire::kProgramIsRandom : 0);
    out_.text(program_.producer.empty() ? TORCH_VERSION : program_.producer);
    id(program_.value_count);
  }

  void op_names() {
    std::vector<const std::string*> order;
    for (const Op& op : program_.ops) {
      const auto [it, is_new] = names_.try_emplace(op.name + "\n" + op.overload, names_.size());
      if (is_new) order.push_back(&it->first);
    }
    out_.varint(order.size());
    for (const std::string* name : order) out_.text(*name);
  }

  void interface() {
    out_.varint(program_.inputs.size());
    for (const ProgramInput& input : program_.inputs) {
      id(input.id);
      write(input.spec);
    }
    out_.varint(program_.variables.size());
    for (const ProgramVariable& variable : program_.variables) {
      id(variable.id);
      out_.text(variable.name);
      write(variable.spec);
      out_.u8(
          static_cast<std::uint8_t>((variable.is_read ? wire::kVariableIsRead : 0) |
                                    (variable.is_handle_only ? wire::kVariableIsHandleOnly : 0)));
    }
    out_.varint(program_.draws.size());
    for (const ProgramDraw& draw : program_.draws) {
      out_.varint(draw.fields.size());
      for (const TensorSpec& field : draw.fields) write(field);
    }
  }

  void write(const TensorSpec& spec) {
    COHORT_CHECK(spec.is_static() && wire::is_portable(spec.dtype), ErrorCode::invalid_argument,
                 "[function.encode] expected a known shape and a plain dtype, got ",
                 spec.to_string());
    out_.u8(static_cast<std::uint8_t>(spec.dtype));
    out_.varint(spec.sizes->size());
    for (const std::int64_t size : *spec.sizes) out_.varint(static_cast<std::uint64_t>(size));
  }

  void write(const ProgramConstant& constant) {
    const at::Tensor& value = constant.value;
    COHORT_CHECK(
        value.layout() == at::kStrided && value.is_cpu() && !value.is_conj() && !value.is_neg(),
        ErrorCode::invalid_argument, "[function.encode] expected a dense constant on the CPU, got ",
        value.toString());
    const at::Tensor dense = value.contiguous();
    id(constant.id);
    write(TensorSpec::of(dense));
    out_.u8(constant.is_wrapped_number ? wire::kConstantIsWrapped : 0);
    out_.blob({static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()});
  }

  void write(const Op& op) {
    out_.varint(names_.at(op.name + "\n" + op.overload));
    out_.u8(op.flags);
    const std::size_t count = written_arguments(op);
    COHORT_CHECK(count <= wire::kArgumentsMax, ErrorCode::invalid_argument,
                 "[function.encode] expected at most ", wire::kArgumentsMax, " arguments, got ",
                 count, " (", op.name, ")");
    out_.varint(count);
    for (std::size_t i = 0; i < count; ++i) write(op.args[i]);
    out_.varint(op.outs.size());
    for (const Out& out : op.outs) {
      out_.u8(out.is_list ? 1 : 0);
      out_.varint(out.ids.size());
      for (const int value : out.ids) optional_id(value);
    }
  }

  void write(const Arg& arg) {
    out_.u8(static_cast<std::uint8_t>(arg.kind));
    switch (arg.kind) {
      case Kind::none:
      case Kind::boolean_false:
      case Kind::boolean_true:
        break;
      case Kind::value:
        id(arg.id);
        break;
      case Kind::values:
        out_.varint(arg.ids.size());
        for (const int value : arg.ids) optional_id(value);
        break;
      case Kind::integers:
      case Kind::reals:
      case Kind::booleans:
      case Kind::scalars:
        list(arg.kind, arg.constant.toListRef());
        break;
      default:
        plain(arg.kind, arg.constant);
    }
  }

  void list(Kind kind, c10::ArrayRef<c10::IValue> values) {
    out_.varint(values.size());
    for (const c10::IValue& value : values) {
      if (kind == Kind::integers) out_.zigzag(value.toInt());
      if (kind == Kind::reals) out_.f64(value.toDouble());
      if (kind == Kind::booleans) out_.u8(value.toBool() ? 1 : 0);
      if (kind == Kind::scalars) scalar(value);
    }
  }

  void scalar(const c10::IValue& value) {
    const Kind kind = value.isInt()      ? Kind::integer
                      : value.isDouble() ? Kind::real
                      : !value.isBool()  ? Kind::complex
                      : value.toBool()   ? Kind::boolean_true
                                         : Kind::boolean_false;
    out_.u8(static_cast<std::uint8_t>(kind));
    if (!value.isBool()) plain(kind, value);
  }

  void plain(Kind kind, const c10::IValue& value) {
    if (kind == Kind::integer) {
      out_.zigzag(value.toInt());
    } else if (kind == Kind::real) {
      out_.f64(value.toDouble());
    } else if (kind == Kind::complex) {
      out_.f64(value.toComplexDouble().real());
      out_.f64(value.toComplexDouble().imag());
    } else if (kind == Kind::text) {
      out_.text(value.toStringRef());
    } else {
      COHORT_ASSERT(kind == Kind::device);
      const c10::Device device = value.toDevice();
      out_.u8(static_cast<std::uint8_t>(device.type()));
      out_.zigzag(device.index());
    }
  }

  const Program& program_;
  ByteWriter out_;
  std::map<std::string, std::size_t> names_;
};

}  // namespace

Bytes encode(const Program& program) { return ProgramWriter(program).write(); }

}  // namespace cohort::function
