// SPDX-License-Identifier: Apache-2.0
// MultiWorkerMirroredStrategy on GroupBackend::mpi in processes that mpirun starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/testing/mpirun.h"
#include "cohort/testing/running_program.h"

#ifndef MPI_WORKER
#define MPI_WORKER ""
#endif

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunningProgram;

class MpiWorkers : public testing::LeavesNoProcess {
 protected:
  void SetUp() override {
    if (!testing::has_mpirun()) GTEST_SKIP() << "no MPI was found for this build";
  }
  static RunningProgram job(int size, const std::string& way) {
    return testing::mpi_job(size, {MPI_WORKER, way});
  }
};

TEST_F(MpiWorkers, TakeRanksAndSizeFromMpi) {
  RunningProgram workers = job(3, "once");
  EXPECT_EQ(workers.wait().to_string(), "exit code 0") << workers.err();
  EXPECT_THAT(workers.out(),
              AllOf(HasSubstr("worker 0 of 3: 18\n"), HasSubstr("worker 1 of 3: 18\n"),
                    HasSubstr("worker 2 of 3: 18\n")));
}

TEST_F(MpiWorkers, UseTheProgramsMpiAndLeaveItsEndToIt) {
  RunningProgram workers = job(2, "own");
  EXPECT_EQ(workers.wait().to_string(), "exit code 0") << workers.err();
  EXPECT_THAT(workers.out(), AllOf(HasSubstr("worker 1 of 2: 9\n"), HasSubstr("own sum 2\n")));
}

TEST_F(MpiWorkers, RefuseAnMpiForOneThread) {
  RunningProgram workers = job(2, "single");
  EXPECT_NE(workers.wait().to_string(), "exit code 0");
  EXPECT_THAT(workers.err(),
              AllOf(HasSubstr("expected MPI with MPI_THREAD_MULTIPLE for GroupBackend::mpi, got "
                              "MPI_THREAD_S"),
                    HasSubstr("or leave that to Cohort")));
}

TEST_F(MpiWorkers, MakeSeveralStrategies) {
  RunningProgram workers = job(2, "twice");
  EXPECT_EQ(workers.wait().to_string(), "exit code 0") << workers.err();
}

TEST_F(MpiWorkers, CannotBeRebuilt) {
  RunningProgram workers = job(2, "rebuild");
  // Regression: 64, as if another start would not help.
  EXPECT_EQ(workers.wait().to_string(), "exit code 75");
  EXPECT_THAT(workers.err(), HasSubstr("got those of GroupBackend::mpi, whose job ends with each "
                                       "of its processes; start the job again"));
}

TEST_F(MpiWorkers, EndTogetherWhenOneIsLost) {
  RunningProgram workers = job(3, "loss");
  EXPECT_NE(workers.wait().to_string(), "exit code 0");
}

// Regression: the others waited for it in MPI_Finalize().
TEST_F(MpiWorkers, EndTogetherWhenOneHasStopped) {
  RunningProgram workers = job(3, "stop");
  EXPECT_NE(workers.wait().to_string(), "exit code 0");
  EXPECT_THAT(workers.err(), HasSubstr("deadline_exceeded from worker:1"));
}

TEST_F(MpiWorkers, NameTheOneThatFailed) {
  RunningProgram workers = job(3, "throws");
  EXPECT_NE(workers.wait().to_string(), "exit code 0");
  EXPECT_THAT(workers.err(), HasSubstr("a mistake of one worker"));
}

}  // namespace
}  // namespace cohort
