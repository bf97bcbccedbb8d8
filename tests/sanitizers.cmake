# What the sanitizers run of each test program: a filter of GoogleTest. The address sanitizer runs all
# of a program that has no memory_of_ here, the thread sanitizer nothing of one without threads_of_.

# list(JOIN) for a filter: msa_filter(VARIABLE BEFORE PATTERNS...)
function(msa_filter variable before)
    list(JOIN ARGN ":" patterns)
    set(${variable} "${before}${patterns}" PARENT_SCOPE)
endfunction()

foreach(program core train analysis)
    set(threads_of_test_${program} "*")
endforeach()
set(threads_of_test_goldens "-*reference_*")
set(threads_of_test_parallel "*-*reference*")

# The thread sanitizer leaves out reference, which has one thread, and the long tests of values:
# ThreadsAndRerunsChangeNoBit takes the same operations through the same cases.
msa_filter(threads_of_test_backends "-" *reference_* *AttentionGradTest.*Reference*
    *AttentionGradTest.Keys* *AttentionGradTest.AllBlocks*
    *AttentionGradTest.IsTheFiniteDifference* *QueriesThatAreNotFinite*
    *ForeignBlocksThatAreNotFinite* OwnAttention/*MatchesReference*)
# The address sanitizer sees reference where the others are compared with it, in every case of every
# operation, and leaves out what differs from other tests in values alone.
msa_filter(memory_of_test_backends "-" */reference_f32_* *GroupSizes.QueriesThatAreNotFinite*
    *GroupSizes.ForeignBlocks* *GroupSizes.RerunsChangeNoBit*)

# Many runs that have to give the same bytes, under kills or with other workers: each does what the
# run of another test does, whose memory the address sanitizer sees.
msa_filter(memory_of_test_experiments "-" *ChangeNoBit *ChangeNoByte *TheBytesOfOne*
    *AfterKillsAtManyMoments Resume.AfterInterrupts)

# Side by side run the fit's jobs, the threads of selectors and measures, and the progress line.
msa_filter(threads_of_test_experiments "" Analyze.Threads* AnalyzeMetrics.* Compare.HasARow*
    Compare.Decode* Far* Fit.JobsChangeNoBit Fit.ThreadsChangeNoBit FitTrainers.OfEvery*
    FitWorkers.TogetherHave* PrecisionTest.JobsChangeNoByte Reuse.JobsChangeNoByte
    Shards.JobsChangeNoByte Shards.CompareIs*)
