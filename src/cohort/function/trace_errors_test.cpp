// SPDX-License-Identifier: Apache-2.0
// The texts of a trace's errors: the user's line, and the errors of LibTorch's own operators.
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>

#include "cohort/function/function.h"
#include "cohort/function/tracer/call_site.h"
#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/testing/error_of.h"

namespace users_program {
namespace {

constexpr int kLineOfBranch = __LINE__ + 1;
at::Tensor branch_on_data(const at::Tensor& x) { return x.sum().item<float>() > 0 ? x : -x; }

}  // namespace
}  // namespace users_program

namespace cohort::function {
namespace {

using users_program::branch_on_data;
using users_program::kLineOfBranch;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class TraceErrors : public TraceCase {
 protected:
  TraceErrors() { options_.names_call_site = true; }

  // The error of tracing `body`, with its code and cause.
  Error failure(const std::function<at::Tensor(at::Tensor)>& body) {
    return testing::error_of([&] {
      traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)},
             [&](const Tensors& inputs) { return Tensors{body(inputs[0])}; });
    });
  }
};

// The lines after the message.
std::string sites_of(const std::string& text) {
  const std::size_t begin = text.find("\n    at ");
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find("\n  while ", begin) - begin);
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr)
    text += buffer.data();
  return text;
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

TEST_F(TraceErrors, NameTheUsersLineFirst) {
  const std::string text = refusal([](at::Tensor x) { return branch_on_data(x * 2); });
  const std::string line = "trace_errors_test.cpp:" + std::to_string(kLineOfBranch);
  EXPECT_THAT(sites_of(text), ContainsRegex("^\n    at [^\n]*branch_on_data[^\n]*" + line));
}

// Each line was a page of the types of std::function and of the library, where the compiler had put
// the user's code into what calls it. So has it in this test where it optimises.
TEST_F(TraceErrors, NameNoFunctionOfStdOrOfTheLibrary) {
  const Function step([](at::Tensor x) { return branch_on_data(x * 2); });
  const std::string text = refusal([&](at::Tensor x) {
    const std::vector<Nest> arguments{x};
    return step.call(arguments).tensor();
  });
  EXPECT_THAT(sites_of(text),
              AllOf(HasSubstr("trace_errors_test.cpp:"), Not(HasSubstr("_Function_handler")),
                    Not(HasSubstr("std::__invoke")), Not(HasSubstr("cohort::function::erase"))));
}

TEST(CallSite, ShowsTheUsersFunctionWithoutWhatCallsIt) {
  const std::string step =
      "cohort::function::erase<main::{lambda(at::Tensor)#1}>(main::{lambda(at::Tensor)#1}, "
      "std::string)::{lambda(std::span<cohort::Nest const, 18ul>)#1}";
  const std::pair<std::string, const char*> rows[] = {
      {"std::_Function_handler<cohort::Nest (std::span<cohort::Nest const, 18ul>), " + step +
           ">::_M_invoke(std::_Any_data const&, std::span<cohort::Nest const, 18ul>&&)",
       "main::{lambda(at::Tensor)#1}::operator()"},
      {step + "::operator()(std::span<cohort::Nest const, 18ul>)",
       "main::{lambda(at::Tensor)#1}::operator()"},
      {"std::_Function_handler<at::Tensor (at::Tensor), main::{lambda(at::Tensor)#1}>::_M_invoke("
       "std::_Any_data const&, at::Tensor&&)",
       "operator()"},
      {"at::Tensor std::__invoke_impl<at::Tensor, main::{lambda()#1}&>(std::__invoke_other)",
       "operator()"},
      {"with_fn(std::function<at::Tensor (at::Tensor)> const&, at::Tensor)",
       "with_fn(std::function<at::Tensor (at::Tensor)> const&, at::Tensor)"},
      {"Net::forward(at::Tensor)", "Net::forward(at::Tensor)"},
      {"", ""}};
  for (const auto& [name, shown] : rows) EXPECT_EQ(without_machinery(name), shown);
}

// They named the library's own sources, which the user cannot change.
TEST_F(TraceErrors, NameNoLineOfTheLibrary) {
  const at::Tensor w = at::ones({3});
  const std::string text = refusal([&](at::Tensor x) {
    Trace::current()->update(w, internal::write_effect(internal::Effect::Kind::assign, x.sum(0)));
    return x;
  });
  EXPECT_THAT(text, HasSubstr("is no registered variable"));
  EXPECT_THAT(sites_of(text),
              AllOf(HasSubstr("trace_errors_test.cpp:"), Not(HasSubstr("local_variable.cpp")),
                    Not(HasSubstr("variable.h")), Not(HasSubstr("function.h"))));
}

// Run by the tests below in copies of this program.
TEST_F(TraceErrors, DISABLED_PrintACallSite) {
  std::puts(sites_of(refusal([](at::Tensor x) { return branch_on_data(x * 2); })).c_str());
}

// The call site that a copy of this program without some of its symbols prints.
std::string site_of_stripped(const std::string& strip) {
  const std::string copy =
      ::testing::TempDir() + std::to_string(::getpid()) + ".trace_errors_stripped";
  const std::string filter =
      " --gtest_also_run_disabled_tests --gtest_filter=TraceErrors.DISABLED_PrintACallSite";
  const std::string text =
      output_of(strip + " -o " + copy + " " + this_program() + " && " + copy + filter);
  std::filesystem::remove(copy);
  return sites_of(text);
}

// The error named the compiled file, such as "unity_2_cxx.cxx:?", and the library's functions.
TEST_F(TraceErrors, GiveFunctionAndOffsetWithoutDebugInformation) {
  const std::string site = site_of_stripped("strip -g");
  EXPECT_THAT(site, ContainsRegex("^\n    at [^\n]*branch_on_data[^\n]* in "
                                  "[^\n]*trace_errors_stripped\\+0x[0-9a-f]+\n"));
  EXPECT_THAT(site, AllOf(Not(HasSubstr(":?")), Not(HasSubstr("cohort::function::"))));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A sanitizer exports symbols of its own, and its code between the frames moves their offsets.

TEST_F(TraceErrors, GiveTheOffsetInAStrippedProgram) {
  EXPECT_THAT(site_of_stripped("strip -s"),
              ContainsRegex("^\n    at [^\n ]*trace_errors_stripped\\+0x[0-9a-f]+\n"));
}

// Sets an environment variable for a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name), before_(std::getenv(name)) {
    setenv(name, value, 1);
  }
  ~Environment() { setenv(name_, before_.c_str(), 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  const std::string before_;
};

TEST_F(TraceErrors, GiveTheOffsetWithoutAddr2line) {
  const std::string addr2line = output_of("command -v addr2line");
  ASSERT_FALSE(addr2line.empty());
  std::string site;
  {
    const Environment no_path("PATH", "/nowhere");
    site = sites_of(refusal([](at::Tensor x) { return branch_on_data(x * 2); }));
  }
  std::smatch found;
  ASSERT_TRUE(std::regex_search(site, found, std::regex("^\n    at (/[^ ]+)\\+(0x[0-9a-f]+)$")))
      << site;
  EXPECT_EQ(found[1], this_program());
  EXPECT_THAT(output_of("addr2line -ie " + found[1].str() + " " + found[2].str()),
              HasSubstr("trace_errors_test.cpp:" + std::to_string(kLineOfBranch)));
}
#endif

// The error had only LibTorch's message.
TEST_F(TraceErrors, OfOperatorsSayWhichAndWithWhat) {
  parameter("w", {5, 2});
  const int line = __LINE__ + 1;
  const Error error = failure([&](at::Tensor x) { return x.mul(2).matmul(tensors_["w"]); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << "as where a worker runs it";
  EXPECT_EQ(error.cause(), ErrorCause::application);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'aten::mm' failed: "),
                                     HasSubstr("mat1 and mat2 shapes cannot be multiplied"),
                                     HasSubstr("self float32[4, 3], mat2 float32[5, 2]")));
  EXPECT_THAT(error.message(), AllOf(HasSubstr("[inside aten::matmul]; op #1 of the trace of "
                                               "'function', after aten::mul"),
                                     HasSubstr("trace_errors_test.cpp:" + std::to_string(line))));
}

// The program ended with 70, as if its own code were wrong.
TEST_F(TraceErrors, OfMemoryAreALackOfMemory) {
  const Error error = failure([](at::Tensor x) {
    return x.sum().expand({1 << 24, 1 << 24}).add(1).sum();
  });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
  EXPECT_EQ(exit_code_of(error), 75);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("'aten::add' failed: "), HasSubstr("DefaultCPUAllocator"),
                    HasSubstr("give this process more")));
}

TEST_F(TraceErrors, OfCompositeOperatorsSayWhich) {
  const Error error = failure([](at::Tensor x) { return x.reshape({5, -1}); });
  EXPECT_THAT(error.message(), AllOf(ContainsRegex("'aten::(reshape|view)' failed: "),
                                     HasSubstr("(with self float32[4, 3])"), HasSubstr("op #0")));
}

TEST_F(TraceErrors, OfOperatorsThatTheBodyCatchesAreItsOwnAffair) {
  EXPECT_EQ(failure([](at::Tensor x) {
              try {
                return x.mm(x);
              } catch (const c10::Error&) {
                return x.mul(3);
              }
            }).message(),
            "no error");
}

TEST_F(TraceErrors, OfTheBodyItselfStayTheirOwn) {
  const Error error = failure([](at::Tensor x) {
    try {
      x.mm(x);
    } catch (const std::exception&) {
    }
    throw std::runtime_error("my own words");
    return x;
  });
  EXPECT_EQ(error.message(), "my own words");
  EXPECT_THAT(error.what(), HasSubstr("trace of 'function'"));
}

TEST_F(TraceErrors, SayThatAnomalyDetectionIsOn) {
  const at::Tensor w = parameter("w", {3});
  const torch::autograd::DetectAnomalyGuard anomaly_detection;
  EXPECT_THAT(refusal([&](at::Tensor x) {
                x.mul(w).sum().backward();
                return w.grad();
              }),
              AllOf(HasSubstr("anomaly detection is on"), HasSubstr("check_finite")));
}

torch::jit::Module script_module(const std::string& body) {
  torch::jit::Module module("scripted");
  module.define("def forward(self, x):\n" + body);
  return module;
}

// TorchScript's interpreter wraps the refusal in its own exception.
TEST_F(TraceErrors, SayThatAScriptModuleRan) {
  torch::jit::Module module =
      script_module("  if bool(x.sum() > 0):\n    x = x + 1\n  return x * 2\n");
  EXPECT_THAT(refusal([&](at::Tensor x) { return module.forward({x}).toTensor(); }),
              AllOf(HasSubstr("[function.trace] cannot trace 'aten::_local_scalar_dense'"),
                    HasSubstr("it calls a TorchScript module"), HasSubstr("torch::nn::Module"),
                    HasSubstr("trace_errors_test.cpp:")));
}

TEST_F(TraceErrors, SayThatAScriptModuleRanWhereAnOperatorFails) {
  torch::jit::Module module = script_module("  return x.mm(x)\n");
  EXPECT_THAT(failure([&](at::Tensor x) { return module.forward({x}).toTensor(); }).message(),
              AllOf(HasSubstr("'aten::mm' failed: "), HasSubstr("mat2 float32[4, 3]"),
                    HasSubstr("it calls a TorchScript module")));
}

TEST_F(TraceErrors, SayThatAScriptModuleRanWhereThePassesDiffer) {
  torch::jit::Module module = script_module("  return x * 2\n");
  int calls = 0;
  EXPECT_THAT(refusal([&](at::Tensor x) { return module.forward({x}).toTensor().add(x, ++calls); }),
              AllOf(HasSubstr("is not the same for other values"),
                    HasSubstr("it calls a TorchScript module")));
}

TEST_F(TraceErrors, SayThatATensorIsSparse) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                return x.to_sparse().clone().sparse_resize_and_clear_({2, 2}, 2, 0);
              }),
              AllOf(HasSubstr("'aten::sparse_resize_and_clear_'"), HasSubstr("sparse(true)")));
}

TEST_F(TraceErrors, SayThatTheGradientOfAnEmbeddingWithPaddingIsSparse) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                const at::Tensor table = at::zeros({3, 2}).requires_grad_();
                at::embedding(table, x.gt(0).to(at::kLong), 0, false, true).sum().backward();
                return table.grad().to_dense();
              }),
              AllOf(HasSubstr("padding_idx"), HasSubstr("without sparse(true)")));
}

}  // namespace
}  // namespace cohort::function
