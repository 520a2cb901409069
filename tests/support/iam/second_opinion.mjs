// Decides requests with @cloud-copilot/iam-simulate, which knows AWS's service authorization reference: it rejects
// unknown actions and resources, and ignores condition keys that an action does not support.
// stdin: {account, policies, boundaries, resourcePolicies, requests: [{role, principal, action, resource, context,
// resourcePolicy}]}; stdout: [{decision, ignored, error}]
import { runSimulation } from '@cloud-copilot/iam-simulate'

let text = ''
for await (const part of process.stdin) text += part
const { account, policies, boundaries, resourcePolicies, requests } = JSON.parse(text)
const everything = { Version: '2012-10-17', Statement: [{ Effect: 'Allow', Action: '*', Resource: '*' }] }
const answers = []
for (const asked of requests) {
  const answer = await runSimulation(
    {
      identityPolicies: policies[asked.role].map((policy, index) => ({ name: `policy${index}`, policy })),
      serviceControlPolicies: [{ orgIdentifier: 'o-1', policies: [{ name: 'all', policy: everything }] }],
      resourceControlPolicies: [],
      permissionBoundaryPolicies: boundaries[asked.role] ? [{ name: 'boundary', policy: boundaries[asked.role] }] : undefined,
      resourcePolicy: asked.resourcePolicy ? resourcePolicies[asked.resourcePolicy] : undefined,
      request: {
        action: asked.action,
        principal: asked.principal,
        resource: { resource: asked.resource, accountId: account },
        contextVariables: asked.context,
      },
    },
    {},
  )
  const ignored = answer.result?.ignoredContextKeys ?? []
  answers.push({ decision: answer.overallResult ?? 'error', ignored, error: answer.errors ?? null })
}
console.log(JSON.stringify(answers))
